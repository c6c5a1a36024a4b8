"""A profile of steps that a real runner computed on a tiny model."""

from headway.config import CacheConfig, Config, ModelConfig, RuntimeConfig
from headway.core.batch import NewRequest, ScheduledBatch, ScheduledRow
from headway.core.request import SamplingParams
from headway.worker.load import load_model
from tiny_checkpoints import tiny_model, write_gguf

PROMPT = tuple(range(20))


def loaded(tmp_path, backend):
    write_gguf(tiny_model("llama"), tmp_path / "m.gguf", "Q8_0")
    return load_model(
        Config(
            model=ModelConfig(name=str(tmp_path / "m.gguf"), cache_dir=str(tmp_path / "cache")),
            cache=CacheConfig(memory_bytes=1 << 20),
            runtime=RuntimeConfig(backend=backend, threads=1),
        )
    )


def prefill_in_two_steps(executor):
    new = NewRequest("a", PROMPT, len(PROMPT), SamplingParams(temperature=0), frozenset())
    first = ScheduledBatch(0, (), (new,), (ScheduledRow("a", 0, 12, (0, 1), False),))
    last = ScheduledBatch(1, (), (), (ScheduledRow("a", 12, 8, (), True),))
    return [executor.submit(batch).result() for batch in (first, last)]


def test_steps_are_told_apart_by_operation_and_sampling_is_one_of_them(tmp_path):
    model = loaded(tmp_path, "native")
    executor = model.make_executor()
    profiler = model.make_profiler(executor)
    profiler.start()
    results = prefill_in_two_steps(executor)
    ops = {op.label: op for op in profiler.stop()}
    assert ops["sampling"].calls == ops["head"].calls == 1  # only the second step has logits
    assert ops["sampling"].bytes_read == 4 * model.memory.info.vocab_size and ops["sampling"].seconds > 0
    layers = model.memory.num_layers
    assert ops["qkv"].calls == 2 * layers and ops["qkv"].operations > 0
    assert sum(op.seconds for op in ops.values()) <= sum(result.seconds for result in results)


def test_limits_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr("headway.ops.native.CALIBRATION_BYTES", 1 << 20)
    model = loaded(tmp_path, "native")
    limits = model.make_profiler(model.make_executor()).calibrate()
    assert min(limits.read_bytes_per_s, limits.footprint_bytes_per_s, limits.int8_ops_per_s) > 0


def test_the_reference_has_no_profile(tmp_path):
    model = loaded(tmp_path, "reference")
    assert model.make_profiler(model.make_executor()) is None
