"""How many blocks must stay free for what runs to grow into."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headway.config import MemoryConfig
from headway.core.output_lengths import OutputLengths
from headway.core.request import Request
from headway.errors import ConfigError


class Stay(NamedTuple):
    """A request in the pool: its tokens in blocks of its own, and how many more are expected before it leaves."""

    num_remaining: int
    num_tokens: int


def peak_growth(stays: Iterable[Stay], block_size: int) -> int:
    """The most blocks that these will hold together at any time, beyond what they hold now.

    Each grows by a token a step and gives all its blocks back at its end, so the most is held just before one of them
    ends. With those that stay longest first, just before the i-th ends the first i are left:

        max over i of  sum(tokens of the first i) + i * remaining of the i-th

    which is the future memory of Past-Future scheduling (Gong et al., 2025), here in blocks, each request's last one
    counted as if it were just begun.
    """
    num_tokens = num_held = most = 0
    for number, stay in enumerate(sorted(stays, reverse=True), 1):
        num_tokens += stay.num_tokens
        num_held += -(-stay.num_tokens // block_size)
        most = max(most, (num_tokens + number * (stay.num_remaining + block_size - 1)) // block_size)
    return max(0, most - num_held)


class Reserve:
    """What the pool keeps free when another request might begin; ``memory.reserve`` and ``memory.watermark``."""

    POLICIES = ("predicted", "all", "none")

    def __init__(self, config: MemoryConfig, num_blocks: int, block_size: int, lengths: OutputLengths) -> None:
        if config.reserve not in self.POLICIES:
            raise ConfigError(f"memory.reserve is {config.reserve!r}; it can be {', '.join(self.POLICIES)}")
        if config.watermark >= 1:
            raise ConfigError(f"memory.watermark is {config.watermark}, of the whole pool: it must be below 1")
        self.watermark_blocks = int(config.watermark * num_blocks)
        self._policy = config.reserve
        self._block_size = block_size
        self._lengths = lengths

    def growth(self, running: Iterable[Request]) -> int:
        """Blocks for these requests to grow into."""
        requests = list(running)
        if self._policy == "none":
            return len(requests)
        return peak_growth(map(self._stay, requests), self._block_size)

    def headroom(self, running: Sequence[Request], newcomer: Request) -> int:
        """Blocks to leave when ``newcomer`` begins beside these. It needs none alone: what it may ask for, fits."""
        if not running:
            return 0
        growing = running if self._policy == "none" else [*running, newcomer]
        return self.growth(growing) + self.watermark_blocks

    def _stay(self, request: Request) -> Stay:
        num_made = len(request.output_token_ids) + request.num_pending_tokens
        if self._policy == "all":
            remaining = request.max_tokens - num_made
        else:
            remaining = self._lengths.remaining(request.tenant, num_made, request.max_tokens)
        return Stay(max(0, remaining), request.num_tokens - request.num_cached_tokens)
