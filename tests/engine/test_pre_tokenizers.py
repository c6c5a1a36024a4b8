import pytest

from headway.engine.pre_tokenizers import bpe_scheme
from headway.engine.vocabulary import BYTE_ALPHABET
from headway.errors import UnsupportedModel


def words(name: str, text: str) -> list[str]:
    scheme = bpe_scheme(name)
    cut = scheme.pre_tokenizer.pre_tokenize_str(text)
    return [bytes(BYTE_ALPHABET[char] for char in word).decode() for word, _ in cut]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", ["you", "'re", " I", "'", "LL", " it", "'", "S"]),
        ("smollm", ["you", "'re", " I", "'", "LL", " it", "'", "S"]),
        ("llama-bpe", ["you", "'re", " I", "'LL", " it", "'S"]),
        ("qwen2", ["you", "'re", " I", "'LL", " it", "'S"]),
        ("tekken", ["you", "'re", " I", "'LL", " it", "'S"]),
        ("deepseek-coder", ["you", "'", "re", " I", "'", "LL", " it", "'", "S"]),
    ],
)
def test_apostrophes(name, expected):
    assert words(name, "you're I'LL it'S") == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", ["a", " 12345", " ½"]),
        ("smollm", ["a", " ", "1", "2", "3", "4", "5", " ", "½"]),
        ("starcoder", ["a", " ", "1", "2", "3", "4", "5", " ", "½"]),
        ("llama-bpe", ["a", " ", "123", "45", " ", "½"]),
        ("smaug-bpe", ["a", " ", "123", "45", " ", "½"]),
        ("qwen2", ["a", " ", "1", "2", "3", "4", "5", " ", "½"]),
        ("tekken", ["a", " ", "1", "2", "3", "4", "5", " ", "½"]),
        ("deepseek-coder", ["a", " ", "1", "2", "3", "4", "5", " ", "½"]),
    ],
)
def test_numbers(name, expected):
    assert words(name, "a 12345 ½") == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", ["a", "\n", "\n", "b", "  ", " c", " ;", "\n", "d"]),
        ("llama-bpe", ["a", "\n\n", "b", "  ", " c", " ;\n", "d"]),
        ("qwen2", ["a", "\n\n", "b", "  ", " c", " ;\n", "d"]),
        ("tekken", ["a", "\n\n", "b", "  ", " c", " ;\n", "d"]),
    ],
)
def test_spaces_and_newlines(name, expected):
    assert words(name, "a\n\nb   c ;\nd") == expected


def test_tekken_cuts_where_a_capital_follows_a_small_letter():
    assert words("tekken", "CamelCase HTTPServer x/") == ["Camel", "Case", " HTTPServer", " x", "/"]


@pytest.mark.parametrize("name", ["gpt-2", "smollm", "llama-bpe", "qwen2", "tekken", "deepseek-coder"])
@pytest.mark.parametrize(
    "text",
    ["你好，世界 2024", "e\u0301 🦙👩‍👩‍👧", "שלום\u200bעולם\t x\r\n\r\n", "", " ", "\x00<|im_end|>", "हिन्दी ภาษา"],
)
def test_nothing_is_lost(name, text):
    assert "".join(words(name, text)) == text


def test_only_the_schemes_whose_models_look_words_up_whole_do_so():
    whole = {
        name
        for name in ("gpt-2", "smollm", "llama-bpe", "smaug-bpe", "qwen2", "tekken")
        if bpe_scheme(name).whole_words
    }
    assert whole == {"llama-bpe", "tekken"}


def test_qwen_composes_characters_first():
    assert bpe_scheme("qwen2").nfc


@pytest.mark.parametrize("name", ["foo", "default", "", None, "GPT-2"])
def test_an_unknown_name_is_refused_and_the_known_ones_are_listed(name):
    with pytest.raises(UnsupportedModel, match="Known: gpt-2, smollm"):
        bpe_scheme(name)
