import json
import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from headway.errors import CheckpointError, ModelError, ModelNotFound, UnsupportedModel
from headway.model.checkpoint import open_checkpoint
from headway.model.safetensors import (
    INDEX_FILE,
    MAX_HEADER_BYTES,
    SINGLE_FILE,
    read_safetensors,
    read_safetensors_folder,
)
from tiny_checkpoints import safetensors_bytes, tiny_model, write_folder


def framed(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def info(shape: list, start: int, end: int, dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def read(folder: Path, data: bytes) -> dict:
    (folder / SINGLE_FILE).write_bytes(data)
    return read_safetensors(folder / SINGLE_FILE)


def test_reads_what_the_official_package_writes(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.ones(5, np.float16),
        "c": np.array(3, np.float32),
    }
    save_file(arrays, tmp_path / SINGLE_FILE, {"format": "pt"})
    tensors = read_safetensors(tmp_path / SINGLE_FILE)
    assert tensors.keys() == arrays.keys()
    for name, values in arrays.items():
        assert tensors[name].shape == values.shape
        assert tensors[name].data.tobytes() == values.tobytes()
        assert not tensors[name].data.flags.owndata and not tensors[name].data.flags.writeable


DAMAGED = {
    "empty": b"",
    "seven bytes": b"\1" * 7,
    "header longer than the file": (1000).to_bytes(8, "little") + b"{}",
    "huge header": (2**64 - 1).to_bytes(8, "little") + b"{}",
    "header longer than allowed": (MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b" " * (MAX_HEADER_BYTES + 1),
    "not JSON": framed(b"{'a': 1}"),
    "not UTF-8": framed(b'{"\xff": 1}'),
    "a list": framed([1, 2]),
    "nested deeply": framed(b'{"a":' * 200_000),
    "nested lists": framed(b'{"a":' + b"[" * 200_000),
    "a number of many digits": framed(b'{"a": ' + b"9" * 100_000 + b"}"),
    "tensor twice": framed(b'{"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]},' * 2 + b'"b": 1}'),
    "entry no object": framed({"a": 3}),
    "entry with a key missing": framed({"a": {"dtype": "F32", "shape": [1]}}, bytes(4)),
    "entry with a key too many": framed({"a": info([1], 0, 4) | {"device": "cpu"}}, bytes(4)),
    "shape no list": framed({"a": info("1", 0, 4)}, bytes(4)),  # type: ignore[arg-type]
    "shape negative": framed({"a": info([-1, -1], 0, 4)}, bytes(4)),
    "shape of fractions": framed({"a": info([1.0], 0, 4)}, bytes(4)),
    "shape of truth values": framed({"a": info([True], 0, 4)}, bytes(4)),
    "shape overflows to a small product": framed({"a": info([2**62, 4, 1], 0, 4)}, bytes(4)),
    "shape of many dimensions": framed({"a": info([1] * 9, 0, 4)}, bytes(4)),
    "one offset": framed({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, bytes(4)),
    "offsets reversed": framed({"a": info([1], 4, 0)}, bytes(4)),
    "offsets too short for the shape": framed({"a": info([2], 0, 4)}, bytes(8)),
    "offsets beyond the data": framed({"a": info([2], 0, 8)}, bytes(4)),
    "tensors overlap": framed({"a": info([2], 0, 8), "b": info([2], 4, 12)}, bytes(12)),
    "a hole": framed({"a": info([1], 0, 4), "b": info([1], 8, 12)}, bytes(12)),
    "bytes after the last tensor": framed({"a": info([1], 0, 4)}, bytes(8)),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_refused_by_name_and_cheaply(tmp_path: Path, name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            read(tmp_path, DAMAGED[name])
        assert tracemalloc.get_traced_memory()[1] < 2 * MAX_HEADER_BYTES + (1 << 20)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dtype", ["I64", "F64", "F8_E4M3", "BOOL", "f32", None, 7])
def test_other_dtypes_are_refused_with_tensor_and_dtype(tmp_path: Path, dtype: object) -> None:
    with pytest.raises(UnsupportedModel, match=f"'weight' has the dtype {dtype!r}"):
        read(tmp_path, framed({"weight": info([1], 0, 8, dtype)}, bytes(8)))


def test_every_truncation_is_a_model_error(tmp_path: Path) -> None:
    model = tiny_model("llama", vocab_size=267, hidden_size=8, intermediate_size=8, num_hidden_layers=1, head_dim=2)
    write_folder(model, tmp_path)
    whole = (tmp_path / SINGLE_FILE).read_bytes()
    for size in (*range(0, 200), *range(200, len(whole), 97), len(whole) - 1):
        (tmp_path / SINGLE_FILE).write_bytes(whole[:size])
        with pytest.raises(ModelError):
            open_checkpoint(tmp_path).weights()


@pytest.mark.parametrize("seed", range(4))
def test_random_damage_raises_nothing_but_model_errors(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    write_folder(tiny_model("qwen3", vocab_size=267, hidden_size=8, num_hidden_layers=1, head_dim=2), tmp_path)
    for name in (SINGLE_FILE, "config.json"):
        whole = (tmp_path / name).read_bytes()
        for _ in range(60):
            data = bytearray(whole)
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(rng.choice([12, min(2000, len(data))]))] = rng.choice(
                    [*b'{}[]",:-019eE', rng.randrange(256)]
                )
            (tmp_path / name).write_bytes(data)
            try:
                list(open_checkpoint(tmp_path).weights().layers)
            except ModelError as error:
                assert str(tmp_path) in str(error)
        (tmp_path / name).write_bytes(whole)


# -- shards ----------------------------------------------------------------------------------------------------------


def write_shards(folder: Path, weight_map: object, **shards: dict[str, np.ndarray]) -> None:
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
    for name, arrays in shards.items():
        (folder / f"{name}.safetensors").write_bytes(safetensors_bytes(arrays, "F32"))


ONE = {"a": np.ones(1, np.float32)}
TWO = {"b": np.ones(2, np.float32)}
GOOD_MAP = {"a": "one.safetensors", "b": "two.safetensors"}


def test_shards_are_read_together(tmp_path: Path) -> None:
    write_shards(tmp_path, GOOD_MAP, one=ONE, two=TWO)
    assert set(read_safetensors_folder(tmp_path)) == {"a", "b"}


def test_shards_may_be_links_out_of_the_folder(tmp_path: Path) -> None:
    """The hub's cache keeps them so; it is only the index that may not name other places."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "model").mkdir()
    write_shards(tmp_path / "blobs", GOOD_MAP, one=ONE, two=TWO)
    for file in (INDEX_FILE, "one.safetensors", "two.safetensors"):
        (tmp_path / "model" / file).symlink_to(tmp_path / "blobs" / file)
    assert set(read_safetensors_folder(tmp_path / "model")) == {"a", "b"}


@pytest.mark.parametrize(
    "file",
    ["../one.safetensors", "/tmp/one.safetensors", "sub/one.safetensors", "..", "one.bin", "a\0.safetensors", "", 3],
)
def test_an_index_cannot_lead_out_of_its_folder(tmp_path: Path, file: object) -> None:
    write_shards(tmp_path, {"a": file}, one=ONE)
    with pytest.raises(CheckpointError, match="not the plain name"):
        read_safetensors_folder(tmp_path)


@pytest.mark.parametrize("weight_map", [None, [], {}, "x"])
def test_an_index_without_a_map(tmp_path: Path, weight_map: object) -> None:
    write_shards(tmp_path, weight_map)
    with pytest.raises(CheckpointError, match="no weight_map"):
        read_safetensors_folder(tmp_path)


def test_index_and_shards_must_agree(tmp_path: Path) -> None:
    write_shards(tmp_path, {**GOOD_MAP, "c": "two.safetensors"}, one=ONE, two=TWO)
    with pytest.raises(CheckpointError, match=r"'c' is listed for two\.safetensors but not in it"):
        read_safetensors_folder(tmp_path)
    write_shards(tmp_path, GOOD_MAP, one=ONE | TWO, two=TWO)
    with pytest.raises(CheckpointError, match=r"'b' is in one\.safetensors but not listed for it"):
        read_safetensors_folder(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path, GOOD_MAP, one=ONE)
    with pytest.raises(ModelNotFound, match=r"two\.safetensors"):
        read_safetensors_folder(tmp_path)
