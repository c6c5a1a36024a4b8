"""Text to token ids and back, over the ``tokenizers`` library, with control tokens kept apart from what users write."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from tokenizers import AddedToken, Encoding, models
from tokenizers import Tokenizer as Encoder

from headway.engine.gguf_tokenizer import read_gguf_tokenizer
from headway.engine.json_tokenizer import read_json_tokenizer
from headway.engine.vocabulary import TokenizerSpec, TokenKind
from headway.errors import InvalidRequest, ModelError


class TokenizerFiles(Protocol):
    """What a checkpoint has to say about its tokenizer."""

    @property
    def kind(self) -> str: ...  # "json" or "gguf"

    @property
    def tokenizer_json(self) -> bytes | None: ...

    @property
    def tokenizer_config(self) -> Mapping[str, Any]: ...

    @property
    def gguf_metadata(self) -> Mapping[str, Any]: ...


def load_tokenizer(files: TokenizerFiles) -> "Tokenizer":
    """Raises UnsupportedModel for a tokenizer not known here and CheckpointError for a broken one; never guesses."""
    if files.kind == "gguf":
        return Tokenizer(read_gguf_tokenizer(files.gguf_metadata))
    if files.tokenizer_json is None:
        raise ModelError("the model has no tokenizer.json: add the one that its authors publish beside the weights.")
    return Tokenizer(read_json_tokenizer(files.tokenizer_json, files.tokenizer_config))


class Tokenizer:
    """One model's tokenizer. Immutable after construction and safe to share between threads.

    Decoding has one rule for every vocabulary: the bytes of the tokens, joined, read as UTF-8, with U+FFFD for each
    maximal part that is not UTF-8 (as the WHATWG decoder and Python's ``errors="replace"`` do).
    """

    def __init__(self, spec: TokenizerSpec) -> None:
        self._spec = spec
        self._vocabulary = spec.vocabulary
        self.vocab_size = len(spec.vocabulary)  # ids with a meaning; a model's logits may be wider
        self.bos_token_id = spec.bos_token_id
        self.eos_token_ids = spec.eos_token_ids
        self.prefix_ids = list(spec.prefix_ids)  # what ``add_special_tokens`` puts before a text
        self.strips_space = spec.strips_space  # the first space of a text is artificial
        self.token_bytes = spec.vocabulary.token_bytes
        self.is_special = spec.vocabulary.is_special
        self.has_text = spec.vocabulary.has_text
        self._control_ids = frozenset(spec.vocabulary.ids_of(TokenKind.CONTROL))
        self._special_ids = {token.content: token_id for token_id, token in spec.special_tokens.items()}
        self._splitter = _splitter(list(spec.special_tokens.values()))

    @property
    def special_names(self) -> dict[str, str]:
        """What chat templates call this tokenizer's special tokens: ``bos_token`` and so on."""
        return dict(self._spec.names)

    @property
    def special_texts(self) -> list[str]:
        """How control tokens are written."""
        return list(self._special_ids)

    def encode(self, text: str, *, add_special_tokens: bool = True, allow_special: bool = False) -> list[int]:
        """Ids of ``text``. Text that spells a control token stays plain text unless ``allow_special``.

        ``add_special_tokens`` adds what the model expects around a text (a BOS token, mostly), never a second one.
        Raises InvalidRequest for text that is not Unicode (lone surrogates).
        """
        ids = self.encode_pieces(self.split_special(text) if allow_special else [text])
        return self.add_prefix(ids) + list(self._spec.suffix_ids) if add_special_tokens else ids

    def add_prefix(self, ids: list[int]) -> list[int]:
        """``ids`` after the tokens every text begins with, unless they are there already."""
        return ids if ids[: len(self.prefix_ids)] == self.prefix_ids else self.prefix_ids + ids

    def split_special(self, text: str) -> list[str | int]:
        """``text`` cut at the control tokens it spells: pieces of text and, between them, control token ids."""
        pieces: list[str | int] = []
        for special, piece in self._split(text):
            pieces.append(piece if special is None else self._special_ids[special])
        return pieces

    def encode_pieces(self, pieces: Iterable[str | int]) -> list[int]:
        """Ids of a text in which control tokens are given as ids; every piece of text becomes plain tokens."""
        ids: list[int] = []
        encoder = self._spec.encoder
        for piece in pieces:
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids += self._encode_plain(encoder, piece)
            encoder = self._spec.inner_encoder
        return ids

    def cut_special(self, text: str) -> list[str]:
        """``text`` in pieces, cut after each character of a control token that it spells: no piece spells one."""
        pieces = [""]
        for special, piece in self._split(text):
            if special is None:
                pieces[-1] += piece
            else:
                before, _, after = piece.partition(special)  # spaces that the token would have taken along
                pieces[-1] += before + special[0]
                pieces += [*special[1:], after]
        return pieces

    def _encode_plain(self, encoder: Encoder, text: str) -> list[int]:
        if self._spec.adds_space and text:
            text = " " + text
        ids: list[int] = _encode(encoder, text).ids
        if self._control_ids.isdisjoint(ids):
            return ids
        # The vocabulary itself spells a control token, as Unigram's do: encode what is left when its text is cut up.
        parts = [_encode(encoder, part).ids for part in self.cut_special(text)]
        return [token_id for part in parts for token_id in part if token_id not in self._control_ids]

    def _split(self, text: str) -> Iterator[tuple[str | None, str]]:
        """Pieces of ``text``, each with the control token that it spells, if it does."""
        found = _encode(self._splitter, text)
        for found_id, (start, end) in zip(found.ids, found.offsets, strict=True):
            yield self._splitter.id_to_token(found_id) if found_id else None, text[start:end]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ``token_ids``; an id without text, in the vocabulary or beyond it, adds nothing."""
        kept = (i for i in token_ids if not (skip_special_tokens and self.is_special(i)))
        data = b"".join(map(self.token_bytes, kept))
        return (data.removeprefix(b" ") if self.strips_space else data).decode(errors="replace")

    def ids_without_text(self, width: int) -> list[int]:
        """Ids below ``width`` (of the logits) that stand for nothing and must never be sampled."""
        return [token_id for token_id in range(width) if not self.has_text(token_id)]


def _splitter(special_tokens: list[AddedToken]) -> Encoder:
    """Finds control tokens in text, whatever their number, in linear time; text between two of them is one token, 0."""
    splitter = Encoder(models.WordLevel({"\0": 0}, unk_token="\0"))
    splitter.add_special_tokens(special_tokens)
    return splitter


def _encode(encoder: Encoder, text: str) -> Encoding:
    try:
        return encoder.encode(text, add_special_tokens=False)
    except TypeError:
        raise InvalidRequest("the text holds lone surrogates, which are no characters: send valid Unicode.") from None
