import random

import pytest
from tokenizers import Tokenizer as Encoder
from tokenizers import decoders, models

import tiny_tokenizers
from headway.engine.detokenizer import Detokenizer
from headway.engine.tokenizer import Tokenizer
from headway.engine.vocabulary import BYTE_ALPHABET

BYTE_LEVEL = tiny_tokenizers.byte_level()
SENTENCEPIECE = tiny_tokenizers.sentencepiece()
HARD_TEXTS = (
    "One. The two. . The",
    "🦙 👩‍👩‍👧‍👦 🇫🇷 e\u0301 Å 是 שלום مرحبا हिन्दी",
    "  two  spaces   three\ttab\n\n\r\n x ",
    " leading",
    "",
    "zero\u200bwidth\ufeff\x00\x7f \U0010fffd",
)


def stream(tokenizer: Tokenizer, ids: list[int], **options) -> tuple[list[str], str]:
    detokenizer = Detokenizer(tokenizer, **options)
    return [detokenizer.push(token_id) for token_id in ids], detokenizer.finish()


def text_of(tokenizer: Tokenizer, ids: list[int], **options) -> str:
    pieces, rest = stream(tokenizer, ids, **options)
    return "".join(pieces) + rest


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """One token a byte."""
    single = {tokenizer.token_bytes(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    if tokenizer is SENTENCEPIECE:
        return [3 + value for value in data]
    return [single[bytes([value])] for value in data]


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte-level", "sentencepiece"])
@pytest.mark.parametrize("text", HARD_TEXTS)
def test_streamed_text_is_the_text_that_was_encoded(tokenizer, text):
    ids = tokenizer.encode(text)
    assert text_of(tokenizer, ids) == tokenizer.decode(ids) == text


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte-level", "sentencepiece"])
def test_a_character_is_held_until_its_bytes_are_complete(tokenizer):
    pieces, rest = stream(tokenizer, byte_ids(tokenizer, "é🦙".encode()))
    assert pieces == ["", "é", "", "", "", "🦙"]
    assert rest == ""


def test_a_character_split_in_two_halves_is_held():
    first = BYTE_LEVEL.encode("🦙", add_special_tokens=False)
    assert BYTE_LEVEL.token_bytes(first[0]) == "🦙".encode()[:2]
    assert stream(BYTE_LEVEL, first)[0] == [*[""] * (len(first) - 1), "🦙"]


def test_a_space_inside_a_broken_character_does_not_flush_early():
    pieces, rest = stream(BYTE_LEVEL, byte_ids(BYTE_LEVEL, b"\xe2\x82 x"))
    assert pieces == ["", "", "\ufffd ", "x"]
    assert rest == ""


@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_byte_fallback_reads_the_same_with_and_without_special_tokens(skip_special_tokens):
    ids = byte_ids(SENTENCEPIECE, "€".encode())
    assert text_of(SENTENCEPIECE, ids, skip_special_tokens=skip_special_tokens) == "€"


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte-level", "sentencepiece"])
def test_a_character_cut_off_by_the_end_is_one_replacement_in_the_last_piece(tokenizer):
    ids = byte_ids(tokenizer, "a€".encode()[:-1])
    assert stream(tokenizer, ids) == (["a", "", ""], "\ufffd")
    assert tokenizer.decode(ids) == "a\ufffd"


def test_only_the_one_artificial_space_goes():
    space, word = 259, 260
    assert (SENTENCEPIECE.token_bytes(space), SENTENCEPIECE.token_bytes(word)) == (b" ", b" the")
    assert text_of(SENTENCEPIECE, [space, word]) == " the"
    assert text_of(SENTENCEPIECE, [word, word]) == "the the"


def test_an_answer_that_continues_text_keeps_its_first_space():
    the = SENTENCEPIECE.encode("the", add_special_tokens=False)
    assert text_of(SENTENCEPIECE, the, prompt_token_ids=the) == " the"
    assert text_of(SENTENCEPIECE, the, prompt_token_ids=[1]) == "the"


def test_a_vocabulary_without_prefix_space_keeps_every_space():
    tokenizer = tiny_tokenizers.sentencepiece(add_space_prefix=False)
    ids = tokenizer.encode(" the", add_special_tokens=False)
    assert text_of(tokenizer, ids) == tokenizer.decode(ids) == " the"


@pytest.mark.parametrize("token_id", [BYTE_LEVEL.vocab_size, 10**9, -1, BYTE_LEVEL.vocab_size - 1])
def test_an_id_without_text_adds_nothing(token_id):
    h = byte_ids(BYTE_LEVEL, b"h")
    assert text_of(BYTE_LEVEL, [*h, token_id, *h], skip_special_tokens=False) == "hh"


def test_special_tokens_are_left_out_or_written_as_they_are():
    ids = BYTE_LEVEL.encode("a<|im_end|>", add_special_tokens=False, allow_special=True)
    assert text_of(BYTE_LEVEL, ids) == "a"
    assert text_of(BYTE_LEVEL, ids, skip_special_tokens=False) == "a<|im_end|>"


def test_a_skipped_special_token_does_not_break_a_character():
    first, *rest = byte_ids(BYTE_LEVEL, "é".encode())
    assert text_of(BYTE_LEVEL, [first, BYTE_LEVEL.bos_token_id, *rest]) == "é"


def test_last_bytes_are_what_each_token_added():
    detokenizer = Detokenizer(SENTENCEPIECE)
    added = []
    for token_id in SENTENCEPIECE.encode("the 是"):
        detokenizer.push(token_id)
        added.append(detokenizer.last_bytes)
    assert b"".join(added) == "the 是".encode()


def random_ids(tokenizer: Tokenizer, rng: random.Random) -> list[int]:
    """Tokens of every kind, with bytes of whole, cut and impossible characters among them."""
    data = b"".join(
        rng.choice([rng.randbytes(1), "🦙".encode(), "é€".encode(), b" ", "🦙".encode()[: rng.randint(1, 3)]])
        for _ in range(rng.randint(0, 8))
    )
    others = [rng.randrange(-1, tokenizer.vocab_size + 2) for _ in range(rng.randint(0, 4))]
    ids = byte_ids(tokenizer, data)
    for token_id in others:
        ids.insert(rng.randint(0, len(ids)), token_id)
    return ids


@pytest.mark.parametrize("seed", range(300))
@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte-level", "sentencepiece"])
def test_stream_is_decode_for_any_ids(tokenizer, seed):
    rng = random.Random(seed)
    ids = random_ids(tokenizer, rng)
    skip = rng.random() < 0.5
    assert text_of(tokenizer, ids, skip_special_tokens=skip) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("seed", range(200))
def test_byte_level_decoding_is_the_librarys(seed):
    rng = random.Random(seed)
    library = Encoder(models.BPE(dict(BYTE_ALPHABET), []))
    library.decoder = decoders.ByteLevel()
    data = bytes(rng.choice(b"a \xc3\xa9\xe2\x82\xac\xf0\x9f\xa6\x99\xff\xed\xa0") for _ in range(rng.randint(0, 20)))
    assert BYTE_LEVEL.decode(byte_ids(BYTE_LEVEL, data)) == library.decode(list(data))
