"""Stop strings in a stream of text."""

from collections.abc import Sequence


class _Pattern:
    """Knuth-Morris-Pratt: after each character, the length of the longest prefix of ``text`` that the stream ends
    with.
    """

    def __init__(self, text: str) -> None:
        if not text:
            raise ValueError("a stop string must not be empty")
        self.text = text
        self.depth = 0
        self._fallback = [0]
        depth = 0
        for char in text[1:]:
            depth = self._next(depth, char)
            self._fallback.append(depth)

    def _next(self, depth: int, char: str) -> int:
        while depth and self.text[depth] != char:
            depth = self._fallback[depth - 1]
        return depth + (self.text[depth] == char)

    def feed(self, char: str) -> int:
        self.depth = self._next(self.depth, char)
        return self.depth


class StopMatcher:
    """Passes text on until one of ``stops`` is complete, and only holds back what may still become one.

    The stop that completes first wins, the longest of those that complete together; so the result does not depend on
    how the text was cut into pieces. ``matched`` is then that stop, and later text is dropped. Time is linear in the
    text.
    """

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        self._patterns = [_Pattern(stop) for stop in sorted(stops, key=len, reverse=True)]
        self._include_stop = include_stop
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The part of the text so far that no stop can take back."""
        if not self._patterns:
            return text
        if self.matched is not None:
            return ""
        pending = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            depths = [pattern.feed(char) for pattern in self._patterns]
            for pattern, depth in zip(self._patterns, depths, strict=True):
                if depth == len(pattern.text):
                    return self._stop(pattern.text, pending[:end])
        held = max((pattern.depth for pattern in self._patterns), default=0)
        self._held = pending[len(pending) - held :]
        return pending[: len(pending) - held]

    def finish(self) -> str:
        """What was held, when the text ends without a stop."""
        held, self._held = self._held, ""
        return held

    def _stop(self, stop: str, pending: str) -> str:
        self.matched = stop
        self._held = ""
        return pending if self._include_stop else pending.removesuffix(stop)
