"""How byte-level BPE vocabularies cut text into words before merging, by the name GGUF gives (``tokenizer.ggml.pre``).

The patterns are those of the models' own tokenizer.json. A GGUF file has only the name, so a name that is not here
cannot be served: another pattern gives other ids, and a model that reads other ids answers nonsense.
"""

from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from headway.errors import UnsupportedModel

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"


def _split(*patterns: str) -> PreTokenizer:
    cuts = [Split(Regex(pattern), "isolated") for pattern in patterns]
    return Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])


def _gpt2(*before: PreTokenizer) -> PreTokenizer:
    return Sequence([*before, ByteLevel(add_prefix_space=False, use_regex=True)])


@dataclass(frozen=True, slots=True)
class BpeScheme:
    """``whole_words``: a word that is a token is taken without merging. ``adds_bos`` holds unless the file says not."""

    pre_tokenizer: PreTokenizer
    whole_words: bool = False
    adds_bos: bool = False
    nfc: bool = False


def bpe_scheme(name: str | None) -> BpeScheme:
    """Raises UnsupportedModel for a name without a known pattern, a missing one included."""
    match name:
        case "gpt-2":
            return BpeScheme(_gpt2())
        case "smollm" | "starcoder" | "refact":
            return BpeScheme(_gpt2(Digits(individual_digits=True)))
        case "llama-bpe" | "llama3" | "llama-v3":
            pattern = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"
            return BpeScheme(_split(pattern), whole_words=True, adds_bos=True)
        case "smaug-bpe" | "dbrx":
            return BpeScheme(_split(rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"))
        case "qwen2" | "deepseek-r1-qwen":
            return BpeScheme(_split(rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_REST}"), nfc=True)
        case "tekken":
            words = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*"
            rest = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            return BpeScheme(_split(rf"{words}|\p{{N}}|{rest}"), whole_words=True, adds_bos=True)
        case "deepseek-coder":
            return BpeScheme(_split(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"))
    raise UnsupportedModel(
        f"this GGUF file names the pre-tokenizer {name!r}, whose rules are not known here; a guess would change the "
        "model's answers. Known: gpt-2, smollm, starcoder, refact, llama-bpe, smaug-bpe, dbrx, qwen2, "
        "deepseek-r1-qwen, tekken, deepseek-coder. Use a file that names one of these, or the model's safetensors "
        "with tokenizer.json."
    )
