"""Law 1 through the scheduler: a request's logits are the same bits, whatever happens around it."""

import os
from pathlib import Path

import numpy as np
import pytest

from headway.config import CacheConfig, Config, EngineConfig, MemoryConfig, ModelConfig, RuntimeConfig, SchedulerConfig
from headway.core.engine_core import EngineCore
from headway.core.request import Request, SamplingParams
from headway.worker.load import load_model
from headway.worker.local_executor import LocalExecutor
from headway.worker.model_runner import ModelRunner
from headway.worker.sampler import Sampler
from tiny_checkpoints import WIDE, tiny_model, write_folder, write_gguf

NUM_PROMPT, NUM_OUTPUT = 150, 20
EVERY_ROOM = 1 << 24


class RecordingSampler(Sampler):
    """Keeps the logits each token was sampled from, by request and position."""

    def __init__(self, backend):
        super().__init__(backend)
        self.logits = {}

    def sample(self, logits, states):
        for row, state in zip(logits, states, strict=True):
            self.logits[state.request_id, state.num_tokens] = row.copy()
        return super().sample(logits, states)


class Engine:
    """A tiny model behind the real scheduler, driven to the end."""

    def __init__(
        self,
        path,
        *,
        threads=2,
        isa="auto",
        max_batch_tokens=512,
        memory_bytes=EVERY_ROOM,
        max_batch_rows=64,
        disk_bytes=0,
        backend="native",
    ):
        scheduler = SchedulerConfig(max_batch_tokens=max_batch_tokens, max_batch_rows=max_batch_rows)
        loaded = load_model(
            Config(
                model=ModelConfig(name=str(path), cache_dir=str(path.parent / "cache")),
                cache=CacheConfig(memory_bytes=memory_bytes, disk_bytes=disk_bytes),
                runtime=RuntimeConfig(backend=backend, threads=threads, isa=isa),
                scheduler=scheduler,
            )
        )
        info = loaded.memory.info
        self._sampler = RecordingSampler(loaded.backend)
        runner = ModelRunner(loaded.program, self._sampler, info)
        executor = LocalExecutor(runner, info, loaded.block_file)
        self.core = EngineCore(executor, EngineConfig(scheduler, MemoryConfig(reserve="none")))
        self.block_file = loaded.block_file
        self._vocab_size = info.vocab_size
        self.block_bytes = loaded.memory.kv_bytes // info.num_blocks
        self.requests = {}

    def add(self, name, num_prompt=NUM_PROMPT, num_output=NUM_OUTPUT, seed=0, temperature=0.8):
        prompt = np.random.default_rng(seed).integers(0, self._vocab_size, num_prompt).tolist()
        return self.add_prompt(name, prompt, num_output, seed, temperature)

    def add_prompt(self, name, prompt, num_output=NUM_OUTPUT, seed=0, temperature=0.8):
        sampling = SamplingParams(max_tokens=num_output, temperature=temperature, seed=seed, ignore_eos=True)
        self.requests[name] = Request(name, tuple(prompt), sampling)
        assert self.core.add_request(self.requests[name], 0.0).is_admitted
        return self

    def run(self):
        now = 0.0
        while self.core.num_running or self.core.num_waiting:
            now += 1
            step = self.core.begin_step(now)
            self.core.finish_step(step, step.handle.result(), now)
        return self

    def outcome(self, name="mine"):
        """(tokens, logits [output, vocabulary]) of one request."""
        tokens = self.requests[name].output_token_ids
        num_prompt = self.requests[name].num_prompt_tokens
        return tokens, np.stack([self._sampler.logits[name, num_prompt + i] for i in range(len(tokens))])


def assert_same(one, other):
    assert one[0] == other[0]
    assert (one[1] == other[1]).all()


MODELS = {
    "llama-Q4_1": lambda folder: write_gguf(tiny_model("llama"), folder / "m.gguf", "Q4_1"),
    "qwen2-Q8_0": lambda folder: write_gguf(tiny_model("qwen2"), folder / "m.gguf", "Q8_0"),
    "qwen3-Q6_K": lambda folder: write_gguf(tiny_model("qwen3", **WIDE), folder / "m.gguf", "Q6_K"),
    "gemma3-BF16": lambda folder: write_folder(tiny_model("gemma3"), folder, "BF16"),
    "mistral-F32": lambda folder: write_folder(tiny_model("mistral"), folder, "F32"),
}


@pytest.fixture(params=MODELS)
def path(request, tmp_path) -> Path:
    MODELS[request.param](tmp_path)
    gguf = tmp_path / "m.gguf"
    return gguf if gguf.exists() else tmp_path


def test_alone_and_among_32_neighbours(path):
    alone = Engine(path).add("mine").run().outcome()
    crowd = Engine(path)
    for i in range(32):
        crowd.add(f"neighbour {i}", num_prompt=3 + 5 * i, num_output=1 + i, seed=100 + i)
        if i == 16:
            crowd.add("mine")
    assert_same(crowd.run().outcome(), alone)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_prefilled_whole_and_in_chunks(path, chunk):
    whole = Engine(path).add("mine").run().outcome()
    assert_same(Engine(path, max_batch_tokens=chunk).add("mine").run().outcome(), whole)


def test_preempted_and_not(path):
    """Room for both prompts and one block more: the later request is preempted as they grow, and recomputed."""
    roomy = Engine(path).add("mine").run()
    tight = Engine(path, memory_bytes=15 * roomy.block_bytes)
    tight.add("first", num_prompt=60, num_output=60, seed=5).add("mine").run()
    assert tight.requests["mine"].num_preemptions > 0
    assert_same(tight.outcome(), roomy.outcome())


def test_from_the_prefix_cache_and_computed(path):
    cold = Engine(path).add("mine").run()
    warm = Engine(path).add("earlier").run().add("mine").run()
    assert warm.requests["mine"].num_cached_tokens == NUM_PROMPT // 16 * 16
    assert_same(warm.outcome(), cold.outcome())


def thrashed(path, **settings):
    """An engine with room for one request, that has computed ours, and another over all of its blocks."""
    block_bytes = Engine(path).block_bytes
    engine = Engine(path, memory_bytes=11 * block_bytes, disk_bytes=40 * 2 * block_bytes, **settings)
    return engine.add("earlier").run().add("other", seed=8).run()


@pytest.mark.parametrize("chunk", [7, 512])
def test_from_blocks_that_were_on_disk_and_computed(path, chunk):
    cold = Engine(path).add("mine").run()
    warm = thrashed(path, max_batch_tokens=chunk).add("mine").run()
    assert warm.requests["mine"].num_cached_tokens == NUM_PROMPT // 16 * 16
    assert warm.core.disk_transfers["load"] == NUM_PROMPT // 16
    assert_same(warm.outcome(), cold.outcome())


def test_from_disk_in_the_reference_backend(path):
    cold = Engine(path, backend="reference").add("mine", num_output=3).run()
    warm = thrashed(path, backend="reference").add("mine", num_output=3).run()
    assert warm.core.disk_transfers["load"] == NUM_PROMPT // 16
    assert_same(warm.outcome(), cold.outcome())


def flip_bits(file, size):
    for at in range(0, size, file.slot_bytes):
        (byte,) = os.pread(file._descriptor, 1, at + 5)
        os.pwrite(file._descriptor, bytes([byte ^ 1]), at + 5)


@pytest.mark.parametrize(
    "damage", [flip_bits, lambda file, size: os.ftruncate(file._descriptor, size // 3)], ids=["flipped", "cut off"]
)
def test_what_was_damaged_on_disk_is_computed_again(path, damage):
    cold = Engine(path).add("mine").run()
    engine = thrashed(path)
    damage(engine.block_file, os.fstat(engine.block_file._descriptor).st_size)
    engine.add("mine").run()
    assert engine.core.disk_transfers["failed"] > 0 and engine.requests["mine"].num_preemptions == 1
    assert_same(engine.outcome(), cold.outcome())


def test_the_next_turn_reuses_what_was_generated(path):
    """As computed by decode steps, one token at a time, where another engine computes it as part of a prompt."""
    warm, cold = Engine(path).add("first").run(), Engine(path)
    first = warm.requests["first"]
    prompt = [*first.prompt_token_ids, *first.output_token_ids, 3, 1, 4]
    outcomes = [engine.add_prompt("mine", prompt).run().outcome() for engine in (warm, cold)]
    assert warm.requests["mine"].num_cached_tokens == (NUM_PROMPT + NUM_OUTPUT - 1) // 16 * 16 > NUM_PROMPT
    assert_same(*outcomes)


def test_on_one_thread_and_on_several(path):
    outcomes = [Engine(path, threads=threads).add("mine").run().outcome() for threads in (1, 2, 3)]
    assert_same(outcomes[1], outcomes[0])
    assert_same(outcomes[2], outcomes[0])


def test_sampled_tokens_differ_by_seed_and_not_by_company(path):
    engine = Engine(path).add("mine", seed=1).add("same", seed=1).add("other", seed=2).run()
    assert_same(engine.outcome("mine"), engine.outcome("same"))
    assert engine.outcome("mine")[0] != engine.outcome("other")[0]
