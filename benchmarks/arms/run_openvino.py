"""OpenVINO GenAI: its continuous batching pipeline, which reads the GGUF file itself, stepped one step at a time.

By default it computes in bfloat16 where the processor has it, which is best for prompts; as the variant "f32" it is
faster for few rows.
"""

import time
from itertools import count
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

import protocol

CACHE_GB, MAX_BATCH_TOKENS, MAX_SEQUENCES = 1, 512, 64


def load(model: str, threads: int, precision: str = "") -> tuple[protocol.Measure, protocol.Facts]:
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GB
    scheduler.max_num_batched_tokens = MAX_BATCH_TOKENS
    scheduler.max_num_seqs = MAX_SEQUENCES
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
    if precision:
        properties["INFERENCE_PRECISION_HINT"] = precision
    pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
    names = count()

    def measure(batch: int, prompt: int, output: int) -> dict[str, float]:
        config = greedy(output)
        prompts = [ov.Tensor(np.array([protocol.random_prompt(prompt)], np.int64)) for _ in range(batch)]
        started = time.perf_counter()
        handles = [pipeline.add_request(next(names), tokens, config) for tokens in prompts]
        token_s: list[list[float]] = [[] for _ in handles]
        while pipeline.has_non_finished_requests():
            pipeline.step()
            now = time.perf_counter() - started
            for handle, times in zip(handles, token_s, strict=True):
                while handle.can_read():
                    times += [now] * sum(len(part.generated_ids) for part in handle.read().values())
        return protocol.timings(token_s)

    def facts() -> dict[str, Any]:
        settings = (
            f"continuous batching, {MAX_BATCH_TOKENS} tokens a step, dynamic split-fuse, {CACHE_GB} GB of cache, "
            f"precision {precision or 'by default'}"
        )
        return {"version": genai.__version__, "settings": settings}

    return measure, facts


def greedy(num_tokens: int) -> genai.GenerationConfig:
    config = genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = num_tokens
    config.ignore_eos = True
    config.do_sample = False
    return config


if __name__ == "__main__":
    protocol.serve(load)
