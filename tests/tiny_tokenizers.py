"""Tokenizers small enough to read, described as a GGUF file or a tokenizer.json would."""

import json
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Encoder

from headway.engine.gguf_tokenizer import read_gguf_tokenizer
from headway.engine.json_tokenizer import read_json_tokenizer
from headway.engine.tokenizer import Tokenizer
from headway.engine.vocabulary import BYTE_ALPHABET, BYTE_TOKENS, TokenKind

BYTE_MERGES = ("Ġ t", "h e", "Ġt he", "l l", "he ll", "hell o", "Ġ Ġ", "æ ĺ", "æĺ ¯", "' s", "Ġ a", "ð Ł")
PIECES = (
    "▁",
    "▁the",
    "he",
    "th",
    "▁t",
    "▁th",
    "hello",
    "hell",
    "el",
    "ll",
    "llo",
    "o",
    "e",
    "h",
    "l",
    "t",
    "a",
    ".",
    "T",
)


def byte_level_metadata(pre: str | None = "gpt-2", **more: Any) -> dict[str, Any]:
    """All bytes, a few merges, two markers (ids -5 and -4 from the end), a word matched first, and two unused rows."""
    merged = ["".join(merge.split()) for merge in BYTE_MERGES]
    tokens = [*BYTE_ALPHABET, *merged, "<|im_start|>", "<|im_end|>", "<tool>", "[PAD1]", "[PAD2]"]
    kinds = [TokenKind.NORMAL] * (len(tokens) - 5)
    kinds += [TokenKind.CONTROL, TokenKind.CONTROL, TokenKind.USER_DEFINED, TokenKind.UNUSED, TokenKind.UNUSED]
    metadata = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [int(kind) for kind in kinds],
        "merges": list(BYTE_MERGES),
        "bos_token_id": len(tokens) - 5,
        "eos_token_id": len(tokens) - 4,
    }
    return _prefixed(metadata | more)


def sentencepiece_metadata(**more: Any) -> dict[str, Any]:
    """unk, bos, eos, the 256 bytes, then pieces from best to worst, and a run of spaces matched first."""
    tokens = ["<unk>", "<s>", "</s>", *BYTE_TOKENS, *PIECES, "   "]
    kinds = [TokenKind.UNKNOWN, TokenKind.CONTROL, TokenKind.CONTROL] + [TokenKind.BYTE] * 256
    kinds += [TokenKind.NORMAL] * len(PIECES) + [TokenKind.USER_DEFINED]
    metadata = {
        "model": "llama",
        "tokens": tokens,
        "token_type": [int(kind) for kind in kinds],
        "scores": [0.0] * 259 + [-float(rank) for rank in range(len(PIECES))] + [0.0],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return _prefixed(metadata | more)


def _prefixed(metadata: dict[str, Any]) -> dict[str, Any]:
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}


def byte_level(pre: str | None = "gpt-2", **more: Any) -> Tokenizer:
    return Tokenizer(read_gguf_tokenizer(byte_level_metadata(pre, **more)))


def sentencepiece(**more: Any) -> Tokenizer:
    return Tokenizer(read_gguf_tokenizer(sentencepiece_metadata(**more)))


def json_encoder(scheme: str = "first") -> Encoder:
    """SentencePiece as tokenizer.json writes it, with a Metaspace that adds the prefix space by ``scheme``."""
    vocabulary = {token: token_id for token_id, token in enumerate(["<unk>", "<s>", "</s>", *BYTE_TOKENS, *PIECES])}
    merges = [("▁", "t"), ("▁t", "h"), ("h", "e"), ("▁t", "he"), ("l", "l"), ("he", "ll"), ("hell", "o")]
    usable = [(left, right) for left, right in merges if left + right in vocabulary]
    encoder = Encoder(models.BPE(vocabulary, usable, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    encoder.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    encoder.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    encoder.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    encoder.add_special_tokens(["<unk>", "<s>", "</s>"])
    encoder.add_special_tokens([AddedToken("<|end|>", rstrip=True)])
    encoder.add_tokens(["<tool>"])
    return encoder


def byte_level_json_encoder() -> Encoder:
    vocabulary = {char: token_id for token_id, char in enumerate(BYTE_ALPHABET)}
    encoder = Encoder(models.BPE(vocabulary, []))
    encoder.normalizer = normalizers.NFC()
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = decoders.ByteLevel()
    encoder.add_special_tokens(["<|end|>"])
    return encoder


def from_json(encoder: Encoder, **config: Any) -> Tokenizer:
    return Tokenizer(read_json_tokenizer(encoder.to_str().encode(), config))


def edited_json(encoder: Encoder, **changes: Any) -> bytes:
    return json.dumps(json.loads(encoder.to_str()) | changes).encode()
