"""Names for what a block of the KV cache holds: equal names, equal keys and values, bit for bit (law 1)."""

from array import array
from collections.abc import Sequence
from hashlib import sha256

VERSION = "headway prefix 1"  # of the scheme below


def root_key(*parts: str) -> bytes:
    """The parent of every first block: whatever decides keys and values besides the tokens, and who may share them.

    Each part goes in with its length, so that ("ab", "c") and ("a", "bc") are two roots.
    """
    digest = sha256()
    for part in (VERSION, *parts):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.digest()


def block_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """A full block's name: SHA-256 over its parent's, and so over every token before it, and its own token ids."""
    return sha256(parent + array("q", token_ids).tobytes()).digest()
