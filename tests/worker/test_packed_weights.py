"""A model's second start maps what its first has packed, and computes the same bits."""

import logging
import os
import shutil
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from headway.config import CacheConfig, Config, ModelConfig, RuntimeConfig
from headway.model import digests
from headway.model.checkpoint import Checkpoint
from headway.ops.contract import StepInput
from headway.worker import packed_weights
from headway.worker.load import load_model
from tiny_checkpoints import K_FORMATS, WIDE, tiny_model, write_folder, write_gguf


@pytest.fixture(autouse=True)
def files_are_settled(monkeypatch):
    monkeypatch.setattr(digests, "CLOCK_STEP_NS", -1)


class Start:
    """What one start of the model at ``path`` did, and the logits it computes."""

    def __init__(self, path, on_progress=lambda label: None, backend="native", **model):
        self.stages = []

        def progress(label, done, total):
            self.stages.append(label.split()[0])
            on_progress(label)

        config = Config(
            model=ModelConfig(name=str(path), cache_dir=str(path.parent / "cache"), **model),
            cache=CacheConfig(memory_bytes=1 << 20),
            runtime=RuntimeConfig(backend=backend, threads=2),
        )
        self.loaded = load_model(config, progress)
        self.did = {"loading", "repacking"} & set(self.stages)
        step = StepInput(
            np.arange(20, dtype=np.int32),
            np.arange(20, dtype=np.int32),
            np.array([0, 20], np.int32),
            np.array([[0, 1]], np.int32),
            np.arange(20, dtype=np.int32),
        )
        self.logits = self.loaded.program.run(step).copy()
        self.weight_bytes = self.loaded.backend.weight_bytes()


def packed_files(path):
    return sorted((path.parent / "cache" / "packed").glob("*"))


def gguf(tmp_path, family="llama", format="Q4_1", seed=0, name="model.gguf", **changes):
    write_gguf(tiny_model(family, seed, **changes), tmp_path / name, format)
    return tmp_path / name


def assert_same_with_and_without(path):
    plain, first, second = Start(path, packed_cache_bytes=0), Start(path), Start(path)
    assert (plain.did, first.did, second.did) == ({"loading"}, {"repacking"}, set())
    assert np.array_equal(plain.logits, first.logits) and np.array_equal(plain.logits, second.logits)
    assert np.isfinite(plain.logits).all()
    assert plain.weight_bytes == first.weight_bytes == second.weight_bytes > 0


@pytest.mark.parametrize("format", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", *K_FORMATS])
def test_every_format_computes_the_same_bits(tmp_path, format):
    assert_same_with_and_without(gguf(tmp_path, format=format, **WIDE if format in K_FORMATS else {}))


@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3", "gemma3"])
def test_every_family_computes_the_same_bits(tmp_path, family):
    assert_same_with_and_without(gguf(tmp_path, family))


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_folder_computes_the_same_bits(tmp_path, family, dtype):
    write_folder(tiny_model(family, mlp_bias=family == "llama"), tmp_path / "model", dtype, shards=2)
    assert_same_with_and_without(tmp_path / "model")


def test_a_packed_model_is_not_read_again(tmp_path, monkeypatch):
    path = gguf(tmp_path)
    Start(path)
    monkeypatch.setattr(Checkpoint, "weights", lambda self: pytest.fail("read again"))
    Start(path)


DAMAGE = {
    "cut off": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "last byte cut off": lambda data: data[:-1],
    "a bit flipped": lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:],
    "of another version": lambda data: data.replace(b"headway packed", b"headway PACKED"),
    "of another model": lambda data: None,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_is_not_sound_is_made_again(tmp_path, damage, caplog):
    path, other = gguf(tmp_path), gguf(tmp_path, seed=1, name="other.gguf")
    Start(other)
    (others,) = packed_files(path)
    first = Start(path)
    (file,) = set(packed_files(path)) - {others}
    sound = file.read_bytes()
    file.write_bytes(DAMAGE[damage](sound) or others.read_bytes())

    second = Start(path)
    assert second.did == {"repacking"} and np.array_equal(first.logits, second.logits)
    (warning,) = caplog.records
    assert f"{file} is removed, and made anew" in warning.getMessage()
    assert file.read_bytes() == sound
    assert Start(path).did == set()


def same_size_and_time(path, other):
    """``other``'s bytes in the place of ``path``, with nothing of the date to tell it by."""
    before = path.stat()
    assert before.st_size == other.stat().st_size
    replacement = path.with_name("replacement")
    shutil.copy(other, replacement)
    os.utime(replacement, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(replacement, path)


def test_another_model_under_the_same_path_is_noticed(tmp_path):
    path, other = gguf(tmp_path), gguf(tmp_path, seed=1, name="other.gguf")
    old, new = Start(path), Start(other, packed_cache_bytes=0)
    same_size_and_time(path, other)
    found = Start(path)
    assert found.did == {"repacking"}
    assert np.array_equal(found.logits, new.logits) and not np.array_equal(found.logits, old.logits)
    assert found.loaded.resolved.digest == new.loaded.resolved.digest


def test_a_model_replaced_while_it_is_packed_is_not_kept_under_its_old_name(tmp_path, caplog):
    path, other = gguf(tmp_path), gguf(tmp_path, seed=1, name="other.gguf")
    old = Start(path, packed_cache_bytes=0)

    def replace_it(label):
        if label.startswith("repacking") and other.exists():
            same_size_and_time(path, other)
            other.unlink()

    found = Start(path, replace_it)
    assert np.array_equal(found.logits, old.logits)  # of the file as it was opened
    assert "have changed meanwhile" in caplog.text and packed_files(path) == []
    new = Start(path)
    assert not np.array_equal(new.logits, old.logits)


def test_another_configuration_is_another_file(tmp_path):
    """What a folder's weights become also depends on config.json, which their digest leaves out."""
    model = tiny_model("llama")
    write_folder(model, tmp_path / "model")
    first = Start(tmp_path / "model")
    write_folder(replace(model, config=model.config | {"rope_theta": 5000.0}), tmp_path / "model")
    second = Start(tmp_path / "model")
    assert second.did == {"repacking"} and not np.array_equal(first.logits, second.logits)


@pytest.mark.parametrize("version", ["__version__", "packed_layout"])
def test_another_version_packs_its_own(tmp_path, monkeypatch, version):
    path = gguf(tmp_path)
    Start(path)
    if version == "__version__":
        monkeypatch.setattr(packed_weights, "__version__", "another")
    else:
        monkeypatch.setattr("headway.ops.native._native.PACKED_LAYOUT", 1 << 20)
    assert Start(path).did == {"repacking"}
    assert len(packed_files(path)) == 2


@pytest.mark.parametrize("how", [{"packed_cache_bytes": 0}, {"backend": "reference"}])
def test_nothing_is_kept_where_it_is_off_or_of_no_use(tmp_path, how):
    path = gguf(tmp_path)
    assert Start(path, **how).did == Start(path, **how).did == {"loading"}
    assert packed_files(path) == []


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path, caplog):
    path = gguf(tmp_path)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "locks").write_text("a file where the folder should be")
    assert Start(path).did == {"loading"}
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("obstacle", ["limit", "full disk", "disk that fills up"])
def test_a_model_that_cannot_be_kept_is_loaded_and_said_so_once(tmp_path, monkeypatch, caplog, obstacle):
    path = gguf(tmp_path)
    if obstacle == "full disk":
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 30))
    if obstacle == "disk that fills up":
        monkeypatch.setattr(packed_weights, "write_packed", no_space)
    start = Start(path, packed_cache_bytes=1000 if obstacle == "limit" else 1 << 30)
    assert start.stages[-1] == "loading"
    (warning,) = caplog.records
    assert f"the packed weights of {path} are not kept" in warning.getMessage()
    assert packed_files(path) == []


def no_space(path, key, weights):
    path.write_bytes(b"half")
    raise OSError(28, "No space left on device")


def test_all_together_stay_within_the_limit(tmp_path):
    paths = [gguf(tmp_path, seed=seed, name=f"{seed}.gguf") for seed in range(3)]
    Start(paths[0])
    (file,) = packed_files(paths[0])
    limit = file.stat().st_size * 5 // 2
    starts = [Start(paths[i], packed_cache_bytes=limit).did for i in (0, 1, 0, 2, 0, 1)]
    repacked = {"repacking"}
    assert starts == [set(), repacked, set(), repacked, set(), repacked]
    assert len(packed_files(paths[0])) == 2


def test_two_starts_at_once_pack_once(tmp_path, monkeypatch):
    path = gguf(tmp_path)
    plain = Start(path, packed_cache_bytes=0)
    written, missed, meet = [], [], threading.Barrier(2)

    def write(temporary, key, weights):
        written.append(temporary)
        write_packed(temporary, key, weights)

    def read(*arguments):
        try:
            return read_packed(*arguments)
        except FileNotFoundError:
            missed.append(arguments)
            if len(missed) <= 2:
                meet.wait(10)  # until both have seen that there is no file
            raise

    write_packed, read_packed = packed_weights.write_packed, packed_weights.read_packed
    monkeypatch.setattr(packed_weights, "write_packed", write)
    monkeypatch.setattr(packed_weights, "read_packed", read)
    starts = []
    threads = [threading.Thread(target=lambda: starts.append(Start(path))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(written) == 1 and len(starts) == 2
    assert all(np.array_equal(start.logits, plain.logits) for start in starts)
