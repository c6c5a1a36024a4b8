"""Which value a sampling field has: the request's, else the server's setting, else the model's own, else neutral."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from headway.config import SamplingDefaults

NEUTRAL: dict[str, float] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


def effective_sampling(
    asked: Mapping[str, Any], configured: SamplingDefaults, model: Mapping[str, Any]
) -> dict[str, Any]:
    """One value for each name in ``NEUTRAL``, fit for ``SamplingParams``; the first source that has one decides."""
    sources = (asked, asdict(configured), model, NEUTRAL)
    return {name: next(v for s in sources if (v := s.get(name)) is not None) for name in NEUTRAL}
