"""llama.cpp: plain batches through its C interface, without sampling; the next token is random.

Prompts of several sequences share batches of 2048 tokens, each sequence has a KV stream of its own (as in llama.cpp's
batched-bench), and logits are computed for the rows that need them.
"""

import time
from typing import Any

import llama_cpp as llama

import protocol

MAX_BATCH, MICRO_BATCH = 2048, 512
NUM_SEQUENCES, MAX_CONTEXT = 32, 640
Row = tuple[int, int, bool]  # sequence, position, whether its logits are wanted


def load(model: str, threads: int) -> tuple[protocol.Measure, protocol.Facts]:
    engine = Engine(model, threads)
    return engine.measure, engine.facts


class Engine:
    def __init__(self, model: str, threads: int) -> None:
        llama.llama_backend_init()
        self._model = llama.llama_model_load_from_file(model.encode(), llama.llama_model_default_params())
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = NUM_SEQUENCES * MAX_CONTEXT, NUM_SEQUENCES, False
        params.n_batch, params.n_ubatch = MAX_BATCH, MICRO_BATCH
        params.n_threads = params.n_threads_batch = threads
        self._context = llama.llama_init_from_model(self._model, params)
        self._batch = llama.llama_batch_init(MAX_BATCH, 0, 1)

    def measure(self, batch: int, prompt: int, output: int) -> dict[str, float]:
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)
        started = time.perf_counter()
        rows = [(sequence, i, i == prompt - 1) for sequence in range(batch) for i in range(prompt)]
        for at in range(0, len(rows), MAX_BATCH):
            self._decode(rows[at : at + MAX_BATCH])
        llama.llama_synchronize(self._context)
        prefilled = time.perf_counter()
        for i in range(output - 1):  # the first token came with the prompt
            self._decode([(sequence, prompt + i, True) for sequence in range(batch)])
        llama.llama_synchronize(self._context)
        return {
            "prefill_s": prefilled - started,
            "decode_s": time.perf_counter() - prefilled,
            "num_decoded": batch * (output - 1),
        }

    def facts(self) -> dict[str, Any]:
        streams = f"{NUM_SEQUENCES} KV streams of {MAX_CONTEXT}"
        settings = f"n_batch {MAX_BATCH}, n_ubatch {MICRO_BATCH}, {streams}, flash attention auto"
        system = llama.llama_print_system_info().decode()
        return {"version": llama.__version__, "system": system, "settings": settings}

    def _decode(self, rows: list[Row]) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        tokens = protocol.random_prompt(len(rows))
        for i, (sequence, position, is_wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = tokens[i], position, is_wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        status = llama.llama_decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode failed with status {status}")


if __name__ == "__main__":
    protocol.serve(load)
