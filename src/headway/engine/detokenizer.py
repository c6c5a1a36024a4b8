"""Text of a growing sequence of tokens, piece by piece."""

import codecs
from collections.abc import Sequence

from headway.engine.tokenizer import Tokenizer

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """One answer's text as its tokens arrive: what ``push`` and ``finish`` return, joined, is ``decode`` of all its
    ids.

    Bytes that may become a character are held until they do; those that cannot become one are U+FFFD. With
    ``prompt_token_ids`` the answer goes on from a prompt, so its first space is its own unless a control token stands
    before. Costs a constant time a token.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, prompt_token_ids: Sequence[int] = ()
    ) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._is_special = tokenizer.is_special
        self._skip_special_tokens = skip_special_tokens
        self._decoder = _new_decoder("replace")
        at_start = not prompt_token_ids or tokenizer.is_special(prompt_token_ids[-1])
        self._strip_space = tokenizer.strips_space and at_start
        self.last_bytes = b""  # what the last token pushed adds to the text

    def push(self, token_id: int) -> str:
        self.last_bytes = self._bytes_of(token_id)
        return self._decoder.decode(self.last_bytes)

    def _bytes_of(self, token_id: int) -> bytes:
        if self._skip_special_tokens and self._is_special(token_id):
            return b""
        data = self._token_bytes(token_id)
        if self._strip_space and data:
            self._strip_space = False
            data = data.removeprefix(b" ")
        return data

    def finish(self) -> str:
        """What was held: U+FFFD for a character cut off by the end."""
        return self._decoder.decode(b"", final=True)
