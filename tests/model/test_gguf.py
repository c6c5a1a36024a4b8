import random
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from headway.errors import CheckpointError, ModelError, ModelNotFound, UnsupportedModel
from headway.model.checkpoint import open_checkpoint
from headway.model.gguf import MAX_ARRAY_LENGTH, GGUFFile, ValueType, read_gguf
from tiny_checkpoints import tiny_model, write_gguf

U32, STRING, ARRAY = ValueType.UINT32, ValueType.STRING, ValueType.ARRAY


def string(text: str | bytes) -> bytes:
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key: str, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, items: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + items


def tensor(name: str, dims: tuple[int, ...], format: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, format, offset)


def gguf_bytes(
    entries: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    data: bytes = b"",
    align: int = 32,
    version: int = 3,
) -> bytes:
    header = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(entries)) + b"".join(entries + tensors)
    return header + b"\0" * (-len(header) % align) + data


def read(folder: Path, data: bytes) -> GGUFFile:
    (folder / "model.gguf").write_bytes(data)
    return read_gguf(folder / "model.gguf")


# -- sound files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
def test_values_keep_their_declared_types(tmp_path: Path, version: int) -> None:
    scalars = {
        ValueType.UINT8: ("B", 255),
        ValueType.INT8: ("b", -1),
        ValueType.UINT16: ("H", 65535),
        ValueType.INT16: ("h", -2),
        ValueType.UINT32: ("I", 2**32 - 1),
        ValueType.INT32: ("i", -3),
        ValueType.FLOAT32: ("f", 0.5),
        ValueType.BOOL: ("?", True),
        ValueType.UINT64: ("Q", 2**64 - 1),
        ValueType.INT64: ("q", -4),
        ValueType.FLOAT64: ("d", 0.1),
    }
    entries = [entry(kind.name, kind, struct.pack("<" + code, value)) for kind, (code, value) in scalars.items()]
    entries += [
        entry(f"{kind.name} list", ARRAY, array(kind, 2, struct.pack(f"<2{code}", value, value)))
        for kind, (code, value) in scalars.items()
    ]
    entries += [
        entry("text", STRING, string("naïve 🦙")),
        entry("texts", ARRAY, array(STRING, 2, string("a") + string(""))),
    ]
    file = read(tmp_path, gguf_bytes(tuple(entries), version=version))
    for kind, (_, value) in scalars.items():
        assert file.metadata[kind.name] == value and type(file.metadata[kind.name]) is type(value)
        assert file.types[kind.name] is kind
        assert file.metadata[f"{kind.name} list"] == [value, value]
    assert file.metadata["text"] == "naïve 🦙"
    assert file.metadata["texts"] == ["a", ""]


def test_tensors_are_views_with_rows_first(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32)
    file = read(tmp_path, gguf_bytes(tensors=(tensor("w", (3, 2)),), data=values.tobytes()))
    stored = file.tensors["w"]
    assert stored.shape == (2, 3)
    assert not stored.data.flags.owndata and not stored.data.flags.writeable
    np.testing.assert_array_equal(stored.data.view(np.float32), values)


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_alignment_is_honoured(tmp_path: Path, alignment: int) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_custom_alignment(alignment)
    arrays = {name: np.arange(5, dtype=np.float32) + i for i, name in enumerate("abc")}
    for name, values in arrays.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(tmp_path / "model.gguf")
    for name, values in arrays.items():
        np.testing.assert_array_equal(file.tensors[name].data.view(np.float32), values)


def test_a_large_vocabulary_reads_right(tmp_path: Path) -> None:
    tokens = [f"token {i}" for i in range(20_000)]
    items = b"".join(map(string, tokens))
    file = read(tmp_path, gguf_bytes((entry("tokens", ARRAY, array(STRING, len(tokens), items)),)))
    assert file.metadata["tokens"] == tokens


# -- damaged and hostile files ---------------------------------------------------------------------------------------

HUGE = 2**63
DAMAGED = {
    "empty": b"",
    "not GGUF": b"GGML" + bytes(60),
    "more entries than bytes": struct.pack("<4sIQQ", b"GGUF", 3, 0, 9) + bytes(20),
    "huge number of entries": struct.pack("<4sIQQ", b"GGUF", 3, 0, HUGE) + bytes(64),
    "huge number of tensors": struct.pack("<4sIQQ", b"GGUF", 3, HUGE, 0) + bytes(64),
    "huge string": gguf_bytes((struct.pack("<Q", HUGE) + b"key" + bytes(32),)),
    "huge array": gguf_bytes((entry("k", ARRAY, array(U32, HUGE, bytes(32))),)),
    "array longer than the file": gguf_bytes((entry("k", ARRAY, array(U32, 1000, bytes(32))),)),
    "array times size overflows": gguf_bytes((entry("k", ARRAY, array(ValueType.UINT64, 2**61, bytes(32))),)),
    "huge array of strings": gguf_bytes((entry("k", ARRAY, array(STRING, HUGE, bytes(32))),)),
    "huge string in an array": gguf_bytes(
        (entry("k", ARRAY, array(STRING, 2, string("a") + struct.pack("<Q", HUGE))),)
    ),
    "array longer than allowed": gguf_bytes(
        (entry("k", ARRAY, array(ValueType.BOOL, MAX_ARRAY_LENGTH + 1, bytes(MAX_ARRAY_LENGTH + 1))),)
    ),
    "array of arrays": gguf_bytes((entry("k", ARRAY, array(ARRAY, 1, array(U32, 1, bytes(4)))),)),
    "unknown value type": gguf_bytes((entry("k", 13, bytes(16)),)),
    "unknown item type": gguf_bytes((entry("k", ARRAY, array(99, 1, bytes(16))),)),
    "truth value 2": gguf_bytes((entry("k", ValueType.BOOL, b"\2"),)),
    "key twice": gguf_bytes((entry("k", U32, bytes(4)), entry("k", U32, bytes(4)))),
    "empty key": gguf_bytes((entry("", U32, bytes(4)),)),
    "key not UTF-8": gguf_bytes((string(b"\xff") + struct.pack("<II", U32, 0),)),
    "text not UTF-8": gguf_bytes((entry("k", STRING, string(b"\xc3(")),)),
    "item not UTF-8": gguf_bytes((entry("k", ARRAY, array(STRING, 1, string(b"\xc3("))),)),
    "tensor twice": gguf_bytes(tensors=(tensor("w", (8,)), tensor("w", (8,), 0, 32)), data=bytes(64)),
    "tensors overlap": gguf_bytes(tensors=(tensor("v", (16,)), tensor("w", (8,), 0, 32)), data=bytes(64)),
    "no dimensions": gguf_bytes(tensors=(tensor("w", ()),), data=bytes(64)),
    "too many dimensions": gguf_bytes(tensors=(tensor("w", (1,) * 5),), data=bytes(64)),
    "a huge number of dimensions": gguf_bytes(tensors=(string("w") + struct.pack("<I", 2**32 - 1) + bytes(64),)),
    "zero dimension": gguf_bytes(tensors=(tensor("w", (8, 0)),), data=bytes(64)),
    "dimensions overflow to a small product": gguf_bytes(tensors=(tensor("w", (2**32, 2**32)),), data=bytes(64)),
    "dimensions overflow to zero": gguf_bytes(tensors=(tensor("w", (2**62, 4, 8)),), data=bytes(64)),
    "tensor longer than the data": gguf_bytes(tensors=(tensor("w", (17,)),), data=bytes(64)),
    "offset beyond the file": gguf_bytes(tensors=(tensor("w", (8,), 0, 2**63),), data=bytes(64)),
    "offset plus size overflows": gguf_bytes(tensors=(tensor("w", (8,), 0, 2**64 - 32),), data=bytes(64)),
    "offset not aligned": gguf_bytes(tensors=(tensor("w", (8,), 0, 4),), data=bytes(64)),
    "row not whole blocks": gguf_bytes(tensors=(tensor("w", (48, 2), 8),), data=bytes(256)),
    "alignment 0": gguf_bytes((entry("general.alignment", U32, struct.pack("<I", 0)),)),
    "alignment 48": gguf_bytes((entry("general.alignment", U32, struct.pack("<I", 48)),)),
    "alignment 2 GiB": gguf_bytes((entry("general.alignment", U32, struct.pack("<I", 1 << 31)),)),
    "alignment of another type": gguf_bytes((entry("general.alignment", ValueType.UINT64, struct.pack("<Q", 32)),)),
    "alignment a text": gguf_bytes((entry("general.alignment", STRING, string("32")),)),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_refused_by_name_and_cheaply(tmp_path: Path, name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=r"model\.gguf"):
            read(tmp_path, DAMAGED[name])
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (gguf_bytes(version=1), "version 1"),
        (gguf_bytes(version=4), "version 4"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "big-endian"),
        (gguf_bytes(tensors=(tensor("w", (256,), 23),), data=bytes(256)), r"'w' has the format IQ4_XS; known are F32"),
        (gguf_bytes(tensors=(tensor("w", (256,), 77),), data=bytes(256)), "format number 77"),
    ],
)
def test_sound_files_we_do_not_read_are_told_apart(tmp_path: Path, data: bytes, problem: str) -> None:
    with pytest.raises(UnsupportedModel, match=problem):
        read(tmp_path, data)


def test_a_header_longer_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = gguf_bytes((entry("k", STRING, string("x" * 4096)),))
    assert len(read(tmp_path, data).metadata) == 1
    monkeypatch.setattr("headway.model.gguf.MAX_HEADER_BYTES", 2048)
    with pytest.raises(CheckpointError, match="MiB pass before the header does"):
        read(tmp_path, data)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        read_gguf(tmp_path / "absent.gguf")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "sound.gguf"
    model = tiny_model("qwen2", vocab_size=267, hidden_size=32, intermediate_size=32, num_hidden_layers=1)
    write_gguf(model, path, "Q8_0")
    return path.read_bytes()


def test_every_truncation_is_a_model_error(tmp_path: Path, sound: bytes) -> None:
    """At each byte of a small header; and of a whole model at many places."""
    small = gguf_bytes(
        (
            entry("general.architecture", STRING, string("llama")),
            entry("list", ARRAY, array(STRING, 2, string("ab") * 2)),
        ),
        (tensor("v", (8,)), tensor("w", (8, 2), 0, 32)),
        bytes(96),
    )
    cuts = [(small, size) for size in range(len(small))]
    cuts += [(sound, size) for size in (*range(0, 2000, 37), *range(2000, len(sound), 997), len(sound) - 1)]
    for data, size in cuts:
        with pytest.raises(ModelError):
            (tmp_path / "cut.gguf").write_bytes(data[:size])
            open_checkpoint(tmp_path / "cut.gguf").weights()


@pytest.mark.parametrize("seed", range(6))
def test_random_damage_raises_nothing_but_model_errors(tmp_path: Path, sound: bytes, seed: int) -> None:
    """Bytes flipped in the header, anywhere or in its fixed part; damage that leaves a sound file may load."""
    rng = random.Random(seed)
    path = tmp_path / f"damaged-{seed}.gguf"
    for _ in range(60):
        data = bytearray(sound)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(rng.choice([24, 600, len(data)]))] = rng.choice(
                [0, 1, 127, 128, 255, rng.randrange(256)]
            )
        path.write_bytes(data)
        try:
            list(open_checkpoint(path).weights().layers)
        except ModelError as error:
            assert str(path) in str(error)
