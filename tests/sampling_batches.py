"""``SamplingBatch``es from one small dictionary a row: what a row does not mention is off."""

from itertools import chain
from typing import Any

import numpy as np

from headway.ops.contract import SamplingBatch

_SCALARS: dict[str, tuple[Any, Any]] = {
    "temperature": (np.float32, 1.0),
    "top_k": (np.int32, 0),
    "top_p": (np.float32, 1.0),
    "min_p": (np.float32, 0.0),
    "presence_penalty": (np.float32, 0.0),
    "frequency_penalty": (np.float32, 0.0),
    "repetition_penalty": (np.float32, 1.0),
    "seed": (np.uint64, 0),
    "position": (np.int32, 0),
    "num_logprobs": (np.int32, -1),
}


def sampling_batch(*rows: dict[str, Any]) -> SamplingBatch:
    """Keys: ``bias`` {id: value}, ``banned`` ids, ``prompt`` ids, ``output`` {id: count}, and the scalars above.

    Ids of ``prompt`` and ``output`` are given in ascending order.
    """
    unknown = {key for row in rows for key in row} - {*_SCALARS, "bias", "banned", "prompt", "output"}
    assert not unknown, unknown
    scalars = {
        name: np.array([row.get(name, default) for row in rows], dtype) for name, (dtype, default) in _SCALARS.items()
    }
    scalars["seeds"], scalars["positions"] = scalars.pop("seed"), scalars.pop("position")
    ragged = {}
    for name in ("bias", "banned", "prompt", "output"):
        lists = [list(row.get(name, ())) for row in rows]
        ragged[f"{name}_starts"] = np.cumsum([0, *map(len, lists)]).astype(np.int32)
        ragged[f"{name}_ids"] = np.array(list(chain.from_iterable(lists)), np.int32)
    biases = [value for row in rows for value in row.get("bias", {}).values()]
    counts = [count for row in rows for count in row.get("output", {}).values()]
    return SamplingBatch(
        **scalars, **ragged, bias_values=np.array(biases, np.float32), output_counts=np.array(counts, np.int32)
    )
