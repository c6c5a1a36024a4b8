"""Headway serves large language models and can answer for itself.

The public names are imported on first use, so that ``import headway`` stays cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "LLM": "headway.engine.llm",
    "SamplingParams": "headway.core.request",
}

__all__ = ["LLM", "SamplingParams", "__version__"]

if TYPE_CHECKING:
    from headway.core.request import SamplingParams
    from headway.engine.llm import LLM


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'headway' has no attribute {name!r}")
