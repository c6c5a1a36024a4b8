"""Token ids and the exact bytes each one stands for."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from tokenizers import AddedToken
from tokenizers import Tokenizer as Encoder

BYTE_TOKENS = {f"<0x{value:02X}>": value for value in range(256)}  # SentencePiece's names for single bytes


class TokenKind(IntEnum):
    """Values of GGUF's ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2  # stands for characters the vocabulary lacks
    CONTROL = 3  # never written by a user: markers of turns, beginnings and ends
    USER_DEFINED = 4  # matched in text before anything else
    UNUSED = 5  # padding of the table; has no text
    BYTE = 6  # one byte of a character the vocabulary lacks


_SPECIAL = (TokenKind.CONTROL, TokenKind.UNKNOWN)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes: itself where visible, else the next character from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [value for value in range(256) if value not in visible]
    return {chr(value): value for value in visible} | {chr(0x100 + rank): value for rank, value in enumerate(hidden)}


BYTE_ALPHABET = _byte_alphabet()


class Vocabulary:
    """The table of tokens: id to bytes. An id outside the table, or unused in it, has no text.

    ``byte_level`` says how normal tokens are written: in GPT-2's byte alphabet, or as SentencePiece text where U+2581
    is a space.
    """

    def __init__(self, tokens: Sequence[str], kinds: Sequence[int], *, byte_level: bool) -> None:
        self.tokens = tokens
        self._kinds = kinds
        self._byte_level = byte_level
        self._bytes: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def is_special(self, token_id: int) -> bool:
        return 0 <= token_id < len(self.tokens) and self._kinds[token_id] in _SPECIAL

    def has_text(self, token_id: int) -> bool:
        return 0 <= token_id < len(self.tokens) and self._kinds[token_id] != TokenKind.UNUSED

    def ids_of(self, *kinds: TokenKind) -> list[int]:
        return [token_id for token_id, kind in enumerate(self._kinds) if kind in kinds]

    def token_bytes(self, token_id: int) -> bytes:
        """Exact bytes of a token, empty where it has no text; they may be a part of a character."""
        found = self._bytes.get(token_id)
        if found is None:
            if not self.has_text(token_id):
                return b""
            found = self._bytes[token_id] = self._spell(token_id)
        return found

    def _spell(self, token_id: int) -> bytes:
        token, kind = self.tokens[token_id], self._kinds[token_id]
        if kind == TokenKind.BYTE:
            return bytes([BYTE_TOKENS[token]])
        if not self._byte_level:
            return token.replace("\u2581", " ").encode()
        if kind == TokenKind.NORMAL and all(char in BYTE_ALPHABET for char in token):
            return bytes(BYTE_ALPHABET[char] for char in token)
        return token.encode()


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """What a tokenizer file says, in one shape whatever its format.

    ``encoder`` turns text without control tokens into ids; ``inner_encoder`` does so for text that follows a control
    token (they differ where the encoder itself gives a prefix space to the start of a text only). Where ``adds_space``,
    each such text gets SentencePiece's prefix space before it is encoded. ``strips_space`` says that the first space of
    a decoded text is such a space. ``names`` holds what templates call the special tokens: ``bos_token`` and so on.
    """

    vocabulary: Vocabulary
    encoder: Encoder
    inner_encoder: Encoder
    special_tokens: dict[int, AddedToken]
    strips_space: bool
    adds_space: bool = False
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    names: dict[str, str] = field(default_factory=dict)
