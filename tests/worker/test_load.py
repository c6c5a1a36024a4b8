"""From settings to a running model; and what a person is told about files and settings that cannot work."""

import json
import shutil
import struct
from dataclasses import replace

import numpy as np
import pytest

from headway.config import CacheConfig, Config, ModelConfig, RuntimeConfig, SchedulerConfig
from headway.core.batch import NewRequest, ScheduledBatch, ScheduledRow
from headway.core.request import SamplingParams
from headway.errors import CheckpointError, ConfigError, ModelError, ModelNotFound, UnsupportedModel
from headway.model.architecture import Architecture, LayerKind, RopeScaling
from headway.worker.cores import usable_cores
from headway.worker.load import load_model, physical_memory, plan_memory
from tiny_checkpoints import tiny_model, write_folder, write_gguf

ARCHITECTURE = Architecture(
    family="llama",
    vocab_size=100,
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    norm_eps=1e-5,
    max_context=256,
    layers=(LayerKind(0, 10000.0, RopeScaling()),) * 3,
)
BLOCK_BYTES = 3 * 2 * 2 * 16 * 16 * 2  # layers, keys and values, kv heads, head_dim, tokens, bf16


@pytest.fixture
def config(tmp_path):
    return Config(
        model=ModelConfig(cache_dir=str(tmp_path / "cache")),
        cache=CacheConfig(memory_bytes=1 << 20),
        runtime=RuntimeConfig(backend="reference"),
    )


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A folder and a GGUF file of one tiny model."""
    base = tmp_path_factory.mktemp("sound")
    write_folder(tiny_model("llama"), base / "folder")
    write_gguf(tiny_model("llama"), base / "model.gguf")
    return base


def load(config, path, progress=lambda *_: None):
    return load_model(replace(config, model=replace(config.model, name=str(path))), progress)


@pytest.mark.parametrize("file", ["folder", "model.gguf"])
@pytest.mark.parametrize("backend", ["reference", "native"])
def test_a_sound_model_makes_an_executor_that_samples(config, sound, file, backend):
    stages = []
    runtime = RuntimeConfig(backend=backend, threads=1)
    loaded = load(replace(config, runtime=runtime), sound / file, lambda *stage: stages.append(stage))
    executor = loaded.make_executor(textless_ids=range(5, 288))
    new = NewRequest("a", (1, 2, 3), 3, SamplingParams(temperature=0), frozenset())
    batch = ScheduledBatch(0, (), (new,), (ScheduledRow("a", 0, 3, (0,), True),))
    (token,) = executor.submit(batch).result().sampled
    assert token.error is None and 0 <= token.token_id < 5
    assert loaded.backend.threads == 1
    assert loaded.memory.kv_bytes <= config.cache.memory_bytes < loaded.memory.kv_bytes + 2 * BLOCK_BYTES
    label, done, total = stages[-1]
    kind = "repacking" if backend == "native" else "loading"
    assert label == f"{kind} {sound / file}" and done == total == loaded.checkpoint.stored_bytes


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_the_tier_on_disk_is_a_fact_of_the_device_and_off_unless_asked_for(config, sound, backend):
    config = replace(config, runtime=RuntimeConfig(backend=backend, threads=1))
    loaded = load(config, sound / "model.gguf")
    assert loaded.block_file is None and loaded.make_executor().info.num_disk_slots == 0
    without_cache = replace(config.cache, disk_bytes=1 << 20, prefix_cache=False)
    assert load(replace(config, cache=without_cache), sound / "model.gguf").block_file is None
    loaded = load(replace(config, cache=replace(config.cache, disk_bytes=1 << 20)), sound / "model.gguf")
    assert loaded.block_file is not None
    assert loaded.make_executor().info.num_disk_slots == (1 << 20) // loaded.block_file.slot_bytes > 0


class TestMemory:
    def plan(self, max_context=0, scheduler=SchedulerConfig(), **cache):
        return plan_memory(ARCHITECTURE, max_context, CacheConfig(**cache), scheduler)

    def test_the_pool_is_as_many_whole_blocks_as_fit(self):
        plan = self.plan(memory_bytes=5 * BLOCK_BYTES + BLOCK_BYTES - 1)
        assert (plan.info.num_blocks, plan.layout.num_blocks, plan.num_layers) == (5, 5, 3)
        assert plan.kv_bytes == 5 * BLOCK_BYTES
        assert self.plan(memory_bytes=5 * BLOCK_BYTES, dtype="f32").info.num_blocks == 2

    @pytest.mark.parametrize(
        ("max_context", "num_blocks", "expected"), [(0, 100, 256), (50, 100, 50), (1000, 100, 256), (0, 3, 48)]
    )
    def test_the_context_is_the_least_of_model_setting_and_pool(self, max_context, num_blocks, expected):
        assert self.plan(max_context, memory_bytes=num_blocks * BLOCK_BYTES).info.max_context == expected

    @pytest.mark.parametrize(
        ("setting", "value", "says"),
        [
            ("memory_bytes", BLOCK_BYTES - 1, f"raise it to at least {BLOCK_BYTES}"),
            ("memory_bytes", 2 * physical_memory(), f"1 to {physical_memory()}"),
            ("block_size", 0, "multiple of 16"),
            ("block_size", 24, "multiple of 16"),
            ("dtype", "f16", "bf16 or f32"),
        ],
    )
    def test_what_cannot_work_is_refused_with_the_way_out(self, setting, value, says):
        with pytest.raises(ConfigError, match=f"cache.{setting} .*{says}"):
            self.plan(**{setting: value})

    @pytest.mark.parametrize("setting", ["max_batch_tokens", "max_batch_rows"])
    @pytest.mark.parametrize("value", [0, 1 << 40])
    def test_a_step_has_a_sensible_size(self, setting, value):
        with pytest.raises(ConfigError, match=rf"scheduler\.{setting} is {value}"):
            self.plan(scheduler=SchedulerConfig(**{setting: value}))


class TestRuntime:
    @pytest.mark.parametrize(
        ("setting", "value", "says"),
        [
            ("backend", "torch", "native or reference"),
            ("isa", "sse", "avx512"),
            ("threads", 1 << 40, "0 to 1024"),
        ],
    )
    def test_what_cannot_work_is_refused_with_the_way_out(self, config, sound, setting, value, says):
        runtime = RuntimeConfig(**{setting: value})
        with pytest.raises(ConfigError, match=rf"runtime\.{setting}.*{says}"):
            load(replace(config, runtime=runtime), sound / "model.gguf")

    def test_by_default_there_is_a_thread_for_each_core(self, config, sound):
        loaded = load(replace(config, runtime=RuntimeConfig()), sound / "model.gguf")
        assert loaded.backend.threads == usable_cores() >= 1


# -- files that are not a sound model: (what is done to the GGUF's bytes, error, what it says) ------------------------

GGUF_DAMAGE = {
    "empty": (lambda data: b"", CheckpointError, "empty; get a sound copy"),
    "zeros": (lambda data: bytes(4096), CheckpointError, "not a GGUF file"),
    "magic alone": (lambda data: b"GGUF", CheckpointError, "get a sound copy"),
    "header cut": (lambda data: data[:300], CheckpointError, "get a sound copy"),
    "data cut": (lambda data: data[: len(data) // 2], CheckpointError, "not inside the file"),
    "last byte cut": (lambda data: data[:-40], CheckpointError, "not inside the file"),
    "absurd counts": (lambda data: b"GGUF" + struct.pack("<IQQ", 3, 1 << 63, 1 << 63), CheckpointError, "it claims"),
    "later version": (lambda data: data[:4] + struct.pack("<I", 9) + data[8:], UnsupportedModel, "only 2 and 3"),
    "big-endian": (lambda data: data[:4] + struct.pack(">I", 3) + data[8:], UnsupportedModel, "convert it"),
    "unknown family": (lambda data: data.replace(b"llama", b"mamba"), UnsupportedModel, "known: llama"),
    "renamed tensor": (lambda data: data.replace(b"blk.1.ffn_up", b"blk.9.ffn_up"), CheckpointError, "is missing"),
    "unknown key": (lambda data: data.replace(b"rope.freq_base", b"rope.freq_bias"), UnsupportedModel, "freq_bias"),
}  # fmt: skip


@pytest.mark.parametrize("damage", GGUF_DAMAGE)
def test_a_damaged_gguf_is_one_clear_error(config, sound, tmp_path, damage):
    change, kind, says = GGUF_DAMAGE[damage]
    path = tmp_path / "model.gguf"
    path.write_bytes(change((sound / "model.gguf").read_bytes()))
    assert_one_clear_error(config, path, kind, says)


def rewrite(file, change):
    return lambda folder: (folder / file).write_bytes(change((folder / file).read_bytes()))


def set_config(**changes):
    return rewrite("config.json", lambda data: json.dumps(json.loads(data) | changes).encode())


def poison(data):
    """NaN in the last weight of the file."""
    return data[:-4] + np.float32("nan").tobytes()


FOLDER_DAMAGE = {
    "no configuration": (lambda folder: (folder / "config.json").unlink(), ModelNotFound, "there is no config.json"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), UnsupportedModel, "no safetensors files"),
    "configuration is no JSON": (rewrite("config.json", lambda data: data[:-9]), CheckpointError, "get a sound copy"),
    "configuration too deep": (rewrite("config.json", lambda data: b"[" * 99999), CheckpointError, "nested too deeply"),
    "unknown family": (set_config(model_type="gpt2"), UnsupportedModel, "known: llama"),
    "absent layers": (set_config(num_hidden_layers=9), CheckpointError, "get a complete copy"),
    "superfluous layers": (set_config(num_hidden_layers=1), CheckpointError, "are not part of a llama model"),
    "another size": (set_config(hidden_size=1 << 20), CheckpointError, "do not belong together"),
    "special token out of range": (set_config(eos_token_id=288), CheckpointError, "vocabulary of 288 tokens"),
    "absurd header": (rewrite("model.safetensors", lambda data: b"\xff" * 8 + data[8:]), CheckpointError, "damaged"),
    "header cut": (rewrite("model.safetensors", lambda data: data[:100]), CheckpointError, "cut off or damaged"),
    "data cut": (rewrite("model.safetensors", lambda data: data[:-1]), CheckpointError, "cut off or damaged"),
    "trailing bytes": (rewrite("model.safetensors", lambda data: data + b"x"), CheckpointError, "damaged"),
    "not finite": (rewrite("model.safetensors", poison), CheckpointError, "infinite or NaN weights"),
    "bad recommendation": (
        lambda folder: (folder / "generation_config.json").write_text('{"top_p": 7}'),
        CheckpointError,
        "top_p is 7",
    ),
}


@pytest.mark.parametrize("damage", FOLDER_DAMAGE)
def test_a_damaged_folder_is_one_clear_error(config, sound, tmp_path, damage):
    change, kind, says = FOLDER_DAMAGE[damage]
    folder = tmp_path / "model"
    shutil.copytree(sound / "folder", folder)
    change(folder)
    assert_one_clear_error(config, folder, kind, says)


def test_a_dangling_link_is_named(config, sound, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(sound / "folder", folder)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(tmp_path / "gone")
    assert_one_clear_error(config, folder, ModelNotFound, str(tmp_path / "gone"))


def assert_one_clear_error(config, path, kind, says):
    with pytest.raises(ModelError) as caught:
        load(config, path)
    message = str(caught.value)
    assert type(caught.value) is kind, message
    assert says in message and str(path) in message
    assert "\n" not in message
