import random
from itertools import pairwise

import pytest
from tokenizers import Tokenizer as Encoder
from tokenizers import models

import tiny_tokenizers
from headway.engine.gguf_tokenizer import merges_in_order, read_gguf_tokenizer
from headway.errors import CheckpointError, UnsupportedModel


def pieces(tokenizer, text: str, **options) -> list[str]:
    return [tokenizer.token_bytes(i).decode() for i in tokenizer.encode(text, add_special_tokens=False, **options)]


@pytest.mark.parametrize("pre", ["foo", "default", None, ""])
def test_an_unknown_pre_tokenizer_is_refused_by_name(pre):
    with pytest.raises(UnsupportedModel, match=repr(pre)):
        tiny_tokenizers.byte_level(pre)


@pytest.mark.parametrize("kind", ["bert", "t5", "rwkv", None])
def test_an_unknown_tokenizer_is_refused_by_name(kind):
    with pytest.raises(UnsupportedModel, match=repr(kind)):
        read_gguf_tokenizer({"tokenizer.ggml.model": kind})


def test_byte_level_merges_are_followed():
    tokenizer = tiny_tokenizers.byte_level()
    assert pieces(tokenizer, "hello the  a's") == ["hello", " the", " ", " a", "'s"]


def test_user_defined_tokens_are_matched_first_and_are_no_control_tokens():
    tokenizer = tiny_tokenizers.byte_level()
    assert pieces(tokenizer, "a<tool>a") == ["a", "<tool>", "a"]
    assert "<tool>" not in tokenizer.special_texts


def test_a_word_that_spells_a_control_token_stays_text_where_words_are_looked_up_whole():
    metadata = tiny_tokenizers.byte_level_metadata("llama-bpe")
    metadata["tokenizer.ggml.tokens"][-5] = "hi"
    tokenizer = tiny_tokenizers.Tokenizer(read_gguf_tokenizer(metadata))
    assert pieces(tokenizer, "hi") == ["h", "i"]


def test_sentencepiece_takes_the_best_score_first():
    tokenizer = tiny_tokenizers.sentencepiece()
    assert pieces(tokenizer, "the hell") == [" the", " ", "hell"]


def test_sentencepiece_spells_unknown_characters_in_bytes():
    tokenizer = tiny_tokenizers.sentencepiece()
    ids = tokenizer.encode("é", add_special_tokens=False)
    assert ids == [259, 3 + 0xC3, 3 + 0xA9]


def test_sentencepiece_without_bytes_has_one_unknown_token_for_a_run():
    metadata = tiny_tokenizers.sentencepiece_metadata(add_space_prefix=False)
    metadata["tokenizer.ggml.token_type"][3:259] = [5] * 256
    tokenizer = tiny_tokenizers.Tokenizer(read_gguf_tokenizer(metadata))
    assert tokenizer.encode("aéüa", add_special_tokens=False).count(0) == 1


def test_runs_of_spaces_are_matched_before_pieces():
    tokenizer = tiny_tokenizers.sentencepiece(add_space_prefix=False)
    assert pieces(tokenizer, "a   a") == ["a", "   ", "a"]
    assert pieces(tokenizer, "a\u2581 \u2581a") == ["a", "   ", "a"]


def test_the_prefix_space_is_part_of_what_is_matched():
    tokenizer = tiny_tokenizers.sentencepiece()
    assert pieces(tokenizer, "  a   a") == ["   ", "a", "   ", "a"]
    assert pieces(tokenizer, "") == []


@pytest.mark.parametrize(
    ("metadata", "prefix", "suffix"),
    [
        (tiny_tokenizers.sentencepiece_metadata(), [1], []),
        (tiny_tokenizers.sentencepiece_metadata(add_bos_token=False), [], []),
        (tiny_tokenizers.sentencepiece_metadata(add_eos_token=True), [1], [2]),
        (tiny_tokenizers.sentencepiece_metadata(bos_token_id=None), [], []),
        (tiny_tokenizers.byte_level_metadata("gpt-2", bos_token_id=5), [], []),
        (tiny_tokenizers.byte_level_metadata("gpt-2", bos_token_id=5, add_bos_token=True), [5], []),
        (tiny_tokenizers.byte_level_metadata("llama-bpe", bos_token_id=5), [5], []),
    ],
)
def test_what_goes_around_a_text_is_the_files_word_or_the_kinds_habit(metadata, prefix, suffix):
    spec = read_gguf_tokenizer(metadata)
    assert (list(spec.prefix_ids), list(spec.suffix_ids)) == (prefix, suffix)


def test_every_end_of_text_and_turn_is_known():
    spec = read_gguf_tokenizer(tiny_tokenizers.sentencepiece_metadata(eot_token_id=7, eom_token_id=2))
    assert spec.eos_token_ids == (2, 7)
    assert spec.names == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": None}, "tokens"),
        ({"merges": None}, "merges"),
        ({"merges": ["a b c"]}, "merge"),
        ({"merges": ["ab"]}, "merge"),
        ({"merges": ["Ġ nowhere"]}, "inconsistent"),
        ({"token_type": [1]}, "token_type has 1 entries"),
        ({"token_type": "abc"}, "token_type"),
        ({"tokens": [1, 2]}, "tokens in this GGUF file is not a list of str"),
        ({"bos_token_id": 10**6}, "bos_token_id"),
        ({"bos_token_id": "x"}, "bos_token_id"),
        ({"eos_token_id": -1}, "eos_token_id"),
    ],
)
def test_a_byte_level_tokenizer_that_contradicts_itself_is_refused(changes, message):
    with pytest.raises(CheckpointError, match=message):
        tiny_tokenizers.byte_level(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, "scores"),
        ({"scores": [0.0]}, "scores has 1 entries"),
        ({"tokens": ["<unk>", "x"], "token_type": [2, 6], "scores": [0.0, 0.0]}, "marked as a byte"),
        ({"tokens": ["x"], "token_type": [1], "scores": [0.0], "unknown_token_id": None}, "unknown token"),
    ],
)
def test_a_sentencepiece_tokenizer_that_contradicts_itself_is_refused(changes, message):
    with pytest.raises(CheckpointError, match=message):
        tiny_tokenizers.sentencepiece(bos_token_id=None, eos_token_id=None, **changes)


def sentencepiece_merge(text: str, scores: dict[str, float]) -> list[str]:
    """The definition: again and again, the neighbours whose joined piece scores best, the leftmost of equals."""
    symbols = list(text)
    while True:
        pairs = [(scores.get(left + right), at) for at, (left, right) in enumerate(pairwise(symbols))]
        known = [(-score, at) for score, at in pairs if score is not None]
        if not known:
            return symbols
        _, at = min(known)
        symbols[at : at + 2] = ["".join(symbols[at : at + 2])]


@pytest.mark.parametrize("seed", range(150))
def test_merges_by_score_give_what_sentencepiece_gives(seed):
    rng = random.Random(seed)
    alphabet = "ab" if seed % 2 else "abc"
    longer = {"".join(rng.choices(alphabet, k=rng.randint(2, 5))) for _ in range(12)}
    ranked = sorted(longer, key=lambda _: rng.random())
    scores = {token: -float(rank) for rank, token in enumerate(ranked)}
    tokens = [*ranked, *alphabet]
    encoder = Encoder(models.BPE({token: rank for rank, token in enumerate(tokens)}, merges_in_order(tokens)))
    for _ in range(10):
        text = "".join(rng.choices(alphabet, k=rng.randint(1, 30)))
        assert encoder.encode(text).tokens == sentencepiece_merge(text, scores), (text, ranked)
