"""Tokenizers described by GGUF metadata (``tokenizer.ggml.*``): byte-level BPE and SentencePiece BPE."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, models, normalizers
from tokenizers import Tokenizer as Encoder

from headway.engine.pre_tokenizers import bpe_scheme
from headway.engine.vocabulary import BYTE_TOKENS, TokenizerSpec, TokenKind, Vocabulary
from headway.errors import CheckpointError, UnsupportedModel

_PREFIX = "tokenizer.ggml."
_NAMES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def read_gguf_tokenizer(metadata: Mapping[str, Any]) -> TokenizerSpec:
    """Raises UnsupportedModel for a kind of tokenizer not known here, CheckpointError for a broken one."""
    model = metadata.get(_PREFIX + "model")
    if model == "gpt2":
        return _Reader(metadata).byte_level_bpe()
    if model == "llama":
        return _Reader(metadata).sentencepiece()
    raise UnsupportedModel(
        f"this GGUF file has a tokenizer of kind {model!r}; known are gpt2 (byte-level BPE) and llama (SentencePiece)."
    )


class _Reader:
    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self._tokens: list[str] = self._list("tokens", str)
        self._kinds: list[int] = self._per_token("token_type", int, [int(TokenKind.NORMAL)] * len(self._tokens))
        self._by_kind: dict[int, list[int]] = {}
        for token_id, kind in enumerate(self._kinds):
            self._by_kind.setdefault(kind, []).append(token_id)
        for token_id in self._ids(TokenKind.BYTE):
            if self._tokens[token_id] not in BYTE_TOKENS:
                raise CheckpointError(f"token {token_id} is marked as a byte but is {self._tokens[token_id][:40]!r}.")

    def byte_level_bpe(self) -> TokenizerSpec:
        scheme = bpe_scheme(self._get("pre"))
        merges = [_merge(text) for text in self._list("merges", str)]
        try:
            model = models.BPE(self._text_tokens(), merges, ignore_merges=scheme.whole_words)
        except Exception as error:  # the library raises plain Exception for a merge of unknown tokens
            raise CheckpointError(f"the tokenizer in this GGUF file is inconsistent: {error}") from error
        encoder = Encoder(model)
        encoder.pre_tokenizer = scheme.pre_tokenizer
        if scheme.nfc:
            encoder.normalizer = normalizers.NFC()
        return self._spec(encoder, byte_level=True, adds_bos=scheme.adds_bos, adds_space=False)

    def sentencepiece(self) -> TokenizerSpec:
        scores = self._per_token("scores", float)
        by_score = sorted(self._ids(TokenKind.NORMAL), key=scores.__getitem__, reverse=True)
        unknown = self._unknown()
        model = models.BPE(
            self._text_tokens() | {unknown: self._tokens.index(unknown)},
            merges_in_order([self._tokens[token_id] for token_id in by_score]),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=bool(self._ids(TokenKind.BYTE)),
        )
        encoder = Encoder(model)
        encoder.normalizer = normalizers.Replace(" ", "\u2581")
        adds_space = bool(self._get("add_space_prefix", True))
        return self._spec(encoder, byte_level=False, adds_bos=True, adds_space=adds_space)

    def _spec(self, encoder: Encoder, *, byte_level: bool, adds_bos: bool, adds_space: bool) -> TokenizerSpec:
        user_defined = [self._tokens[token_id] for token_id in self._ids(TokenKind.USER_DEFINED)]
        # SentencePiece finds these after spaces became U+2581; byte-level vocabularies in the text as it came.
        encoder.add_tokens([AddedToken(token, normalized=not byte_level) for token in user_defined])
        control = self._ids(TokenKind.CONTROL) + self._ids(TokenKind.UNKNOWN)
        bos, eos = self._id("bos"), self._id("eos")
        ends = (eos, self._id("eot"), self._id("eom"))
        return TokenizerSpec(
            vocabulary=Vocabulary(self._tokens, self._kinds, byte_level=byte_level),
            encoder=encoder,
            inner_encoder=encoder,
            special_tokens={i: AddedToken(self._tokens[i], normalized=False, special=True) for i in control},
            adds_space=adds_space,
            strips_space=adds_space,
            prefix_ids=(bos,) if bos is not None and self._get("add_bos_token", adds_bos) else (),
            suffix_ids=(eos,) if eos is not None and self._get("add_eos_token", False) else (),
            bos_token_id=bos,
            eos_token_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
            names={name: text for name, key in _NAMES.items() if (text := self._name(key)) is not None},
        )

    def _unknown(self) -> str:
        """The token for characters that the vocabulary lacks; a SentencePiece model always has one."""
        for token_id in [*self._ids(TokenKind.UNKNOWN), self._id("unknown")]:
            if token_id is not None:
                return self._tokens[token_id]
        raise CheckpointError("the SentencePiece tokenizer in this GGUF file has no unknown token; convert it again.")

    def _text_tokens(self) -> dict[str, int]:
        """Tokens that text may become. Control tokens are left out, so that no merge or lookup can reach them."""
        kinds = (TokenKind.NORMAL, TokenKind.USER_DEFINED, TokenKind.BYTE)
        return {self._tokens[token_id]: token_id for kind in kinds for token_id in self._ids(kind)}

    def _ids(self, kind: TokenKind) -> list[int]:
        return self._by_kind.get(kind, [])

    def _get(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(_PREFIX + key, default)

    def _list(self, key: str, kind: type, default: Sequence[Any] | None = None) -> list[Any]:
        found = self._get(key, default)
        if found is None:
            raise CheckpointError(f"this GGUF file lacks {_PREFIX}{key}; convert or download it again.")
        if not isinstance(found, list) or not all(isinstance(item, kind) for item in found):
            raise CheckpointError(f"{_PREFIX}{key} in this GGUF file is not a list of {kind.__name__}.")
        return found

    def _per_token(self, key: str, kind: type, default: Sequence[Any] | None = None) -> list[Any]:
        found = self._list(key, kind, default)
        if len(found) != len(self._tokens):
            raise CheckpointError(f"{_PREFIX}{key} has {len(found)} entries for {len(self._tokens)} tokens.")
        return found

    def _id(self, key: str) -> int | None:
        found = self._get(key + "_token_id")
        if found is not None and not (isinstance(found, int) and 0 <= found < len(self._tokens)):
            raise CheckpointError(
                f"{_PREFIX}{key}_token_id is {found!r:.40}; the vocabulary has {len(self._tokens)} tokens."
            )
        return found

    def _name(self, key: str) -> str | None:
        token_id = self._id(key)
        return None if token_id is None else self._tokens[token_id]


def _merge(text: str) -> tuple[str, str]:
    left, space, right = text.partition(" ")
    if not (left and space and right) or " " in right:
        raise CheckpointError(f"a merge in this GGUF file is not two tokens: {text[:80]!r}.")
    return left, right


def merges_in_order(tokens: Sequence[str]) -> list[tuple[str, str]]:
    """Every pair of ``tokens`` that makes another of them. ``tokens`` come best score first, and so do the pairs.

    SentencePiece merges the neighbours whose joined piece scores highest, the leftmost of equals. Merges ranked by
    the score of what they make give the same result. (Pairs that make the same token get ranks that differ, where
    SentencePiece sees equals; random texts against the definition show no case where that changes the outcome.)
    """
    known = set(tokens)
    return [
        (token[:cut], token[cut:])
        for token in tokens
        for cut in range(1, len(token))
        if token[cut:] in known and token[:cut] in known
    ]
