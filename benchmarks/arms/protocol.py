"""What an arm hears and says, as JSON lines. Standard library only: each engine's own Python runs it.

    python run_ENGINE.py MODEL THREADS [VARIANT]

It says ``"ready"`` once the model is loaded. To ``"facts"`` it answers with its version and settings; to a work, a
batch of random prompts, with ``{"prefill_s", "decode_s", "num_decoded"}`` as ``timings`` has them.
"""

import json
import os
import random
import sys
from collections.abc import Callable
from typing import Any

Measure = Callable[[int, int, int], dict[str, float]]  # batch, prompt tokens, output tokens
Facts = Callable[[], dict[str, Any]]
Load = Callable[..., tuple[Measure, Facts]]  # model, threads, and the variant where an engine has some

TOKEN_IDS = range(100, 40_000)  # below the vocabularies compared, above their control tokens


def serve(load: Load) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is not an answer
    measure, facts = load(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
    print(json.dumps("ready"), file=answers)
    for line in sys.stdin:
        question = json.loads(line)
        answer = facts() if question == "facts" else measure(question["batch"], question["prompt"], question["output"])
        print(json.dumps(answer), file=answers)


def random_prompt(num_tokens: int) -> list[int]:
    return random.choices(TOKEN_IDS, k=num_tokens)


def timings(token_s: list[list[float]]) -> dict[str, float]:
    """From when each token of each sequence came, in seconds since all were asked for.

    ``prefill_s`` is until every sequence has its first token; ``decode_s`` from then to the last token, with
    ``num_decoded`` tokens in it.
    """
    prefill_s = max(times[0] for times in token_s)
    return {
        "prefill_s": prefill_s,
        "decode_s": max(times[-1] for times in token_s) - prefill_s,
        "num_decoded": sum(at > prefill_s for times in token_s for at in times),
    }
