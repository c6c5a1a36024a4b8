"""vLLM on the CPU: its engine in this process, stepped one step at a time. Greedy, without text.

One process is faster than its usual three where there are few cores, and compiled graphs than eager mode.
"""

import os
import time
from itertools import count
from typing import Any

import protocol


def load(model: str, threads: int) -> tuple[protocol.Measure, protocol.Facts]:
    cores = sorted(os.sched_getaffinity(0))[:threads]
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    from vllm import LLM, SamplingParams, __version__  # reads the environment
    from vllm.sampling_params import RequestOutputKind

    settings = {
        "dtype": "bfloat16",
        "max_model_len": 2048,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "enable_prefix_caching": False,
        "distributed_executor_backend": "uni",
    }
    engine = LLM(model, skip_tokenizer_init=True, **settings).llm_engine
    names = (str(number) for number in count())

    def measure(batch: int, prompt: int, output: int) -> dict[str, float]:
        params = SamplingParams(
            temperature=0,
            max_tokens=output,
            min_tokens=output,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        prompts = {next(names): {"prompt_token_ids": protocol.random_prompt(prompt)} for _ in range(batch)}
        token_s: dict[str, list[float]] = {name: [] for name in prompts}
        started = time.perf_counter()
        for name, ids in prompts.items():
            engine.add_request(name, ids, params)
        while engine.has_unfinished_requests():
            for output_part in engine.step():
                now = time.perf_counter() - started
                token_s[output_part.request_id] += [now] * len(output_part.outputs[0].token_ids)
        return protocol.timings(list(token_s.values()))

    def facts() -> dict[str, Any]:
        return {"version": __version__, "settings": ", ".join(f"{name} {value}" for name, value in settings.items())}

    return measure, facts


if __name__ == "__main__":
    protocol.serve(load)
