from dataclasses import dataclass, field
from typing import Any

import pytest

import tiny_tokenizers
from headway.engine.tokenizer import Tokenizer, load_tokenizer
from headway.errors import InvalidRequest, ModelError, UnsupportedModel

BYTE_LEVEL = tiny_tokenizers.byte_level()
SENTENCEPIECE = tiny_tokenizers.sentencepiece()
METASPACE = tiny_tokenizers.from_json(tiny_tokenizers.json_encoder(), bos_token="<s>", eos_token="</s>")
ALL = pytest.mark.parametrize(
    "tokenizer", [BYTE_LEVEL, SENTENCEPIECE, METASPACE], ids=["byte-level", "sentencepiece", "metaspace"]
)


def special_ids(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    return [token_id for token_id in ids if tokenizer.is_special(token_id)]


@dataclass
class Files:
    kind: str
    tokenizer_json: bytes | None = None
    tokenizer_config: dict[str, Any] = field(default_factory=dict)
    gguf_metadata: dict[str, Any] = field(default_factory=dict)


def test_both_kinds_of_files_are_loaded():
    gguf = load_tokenizer(Files("gguf", gguf_metadata=tiny_tokenizers.byte_level_metadata()))
    assert gguf.decode(gguf.encode("hello 是")) == "hello 是"
    data = tiny_tokenizers.json_encoder().to_str().encode()
    assert load_tokenizer(Files("json", tokenizer_json=data)).encode("the")[0] == 1


def test_a_folder_without_tokenizer_json_says_what_is_missing():
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_tokenizer(Files("json"))


def test_an_unknown_kind_of_tokenizer_is_named():
    with pytest.raises(UnsupportedModel, match="'bert'"):
        load_tokenizer(Files("gguf", gguf_metadata={"tokenizer.ggml.model": "bert"}))


@ALL
def test_text_that_spells_control_tokens_stays_text(tokenizer):
    for control in tokenizer.special_texts:
        text = f"a{control}\n{control}{control} b {control}"
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert special_ids(tokenizer, ids) == []
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


@ALL
def test_allow_special_reads_them_as_tokens(tokenizer):
    for control in tokenizer.special_texts:
        ids = tokenizer.encode(f"a{control}b", add_special_tokens=False, allow_special=True)
        assert [tokenizer.token_bytes(token_id).decode() for token_id in special_ids(tokenizer, ids)] == [control]


@ALL
def test_text_without_control_tokens_is_the_same_either_way(tokenizer):
    text = "the hello. <s <|im_ [x] 是"
    assert tokenizer.encode(text) == tokenizer.encode(text, allow_special=True)


@pytest.mark.parametrize("tokenizer", [SENTENCEPIECE, METASPACE], ids=["sentencepiece", "metaspace"])
def test_bos_is_added_once(tokenizer):
    once = tokenizer.encode("the")
    assert once[0] == tokenizer.bos_token_id
    assert once.count(tokenizer.bos_token_id) == 1
    assert tokenizer.encode("<s>the", allow_special=True).count(tokenizer.bos_token_id) == 1
    assert tokenizer.encode("the", add_special_tokens=False) == once[1:]


def test_bos_is_not_added_where_the_model_wants_none():
    assert BYTE_LEVEL.prefix_ids == []
    assert BYTE_LEVEL.encode("") == []


def test_tokens_have_exact_bytes():
    ids = BYTE_LEVEL.encode("是", add_special_tokens=False)
    assert b"".join(map(BYTE_LEVEL.token_bytes, ids)) == "是".encode()
    assert len(ids) == 1
    assert SENTENCEPIECE.token_bytes(3 + 0xE2) == b"\xe2"
    assert SENTENCEPIECE.token_bytes(260) == b" the"
    assert SENTENCEPIECE.token_bytes(2) == b"</s>"


def test_rows_that_stand_for_nothing_are_listed():
    size = BYTE_LEVEL.vocab_size
    assert BYTE_LEVEL.ids_without_text(size + 2) == [size - 2, size - 1, size, size + 1]
    assert not BYTE_LEVEL.has_text(size)
    assert BYTE_LEVEL.has_text(BYTE_LEVEL.bos_token_id)


@pytest.mark.parametrize("allow_special", [True, False])
def test_lone_surrogates_are_a_bad_request(allow_special):
    with pytest.raises(InvalidRequest, match="surrogate"):
        BYTE_LEVEL.encode("a\ud800", allow_special=allow_special)


def test_pieces_after_a_control_token_have_no_prefix_space_of_their_own():
    ids = METASPACE.encode("the</s>the", add_special_tokens=False, allow_special=True)
    assert METASPACE.decode(ids, skip_special_tokens=False) == "the</s>the"


def test_overlapping_control_texts_are_cut_until_none_is_left():
    metadata = tiny_tokenizers.byte_level_metadata()
    metadata["tokenizer.ggml.tokens"][-5:-3] = ["<a><b>", "<b>"]
    tokenizer = Tokenizer(tiny_tokenizers.read_gguf_tokenizer(metadata))
    joined = "\ue000".join(tokenizer.cut_special("x<a><b><b>y"))
    assert tokenizer.split_special(joined) == [joined]
    assert joined.replace("\ue000", "") == "x<a><b><b>y"


def test_control_tokens_with_the_same_or_no_text_do_not_confuse_the_others():
    metadata = tiny_tokenizers.byte_level_metadata()
    metadata["tokenizer.ggml.tokens"] += ["", "<|im_start|>", "<x>"]
    metadata["tokenizer.ggml.token_type"] += [3, 3, 3]
    tokenizer = Tokenizer(tiny_tokenizers.read_gguf_tokenizer(metadata))
    ids = tokenizer.encode("a<x><|im_end|>", add_special_tokens=False, allow_special=True)
    assert [tokenizer.token_bytes(token_id) for token_id in ids] == [b"a", b"<x>", b"<|im_end|>"]
