"""The KV pool's books: which blocks are free, and how many holders each taken block has."""

from collections import deque
from collections.abc import Iterable


class BlockPool:
    """Owns the ids ``0 .. num_blocks - 1`` and their reference counts; knows nothing of tokens or requests.

    A block is free exactly while its count is 0. Free blocks are handed out in the order they came back, so the same
    calls always give the same ids. Counts only ever move by one: no call sets one.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free: deque[int] = deque(range(num_blocks))
        self._ref_counts = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def ref_count(self, block_id: int) -> int:
        return self._ref_counts[block_id]

    def take(self, count: int) -> list[int]:
        """Takes ``count`` free blocks, each with one holder. ValueError, and no change, when fewer are free."""
        if count > len(self._free):
            raise ValueError(f"{count} blocks asked for, {len(self._free)} free")
        taken = [self._free.popleft() for _ in range(count)]
        for block_id in taken:
            self._ref_counts[block_id] += 1
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """One more holder for each of these taken blocks."""
        for block_id in block_ids:
            self._require_taken(block_id)
            self._ref_counts[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """One holder less for each; the last one gone, the block is free. ValueError for a block nobody holds."""
        for block_id in block_ids:
            self._require_taken(block_id)
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                self._free.append(block_id)

    def check_integrity(self) -> None:
        """RuntimeError unless every block is exactly one of free (count 0, listed once) and taken (count above 0)."""
        uncounted = [block_id for block_id, count in enumerate(self._ref_counts) if count == 0]
        if sorted(self._free) != uncounted:
            raise RuntimeError(f"free list {sorted(self._free)} differs from the blocks without holders {uncounted}")
        if any(count < 0 for count in self._ref_counts):
            raise RuntimeError(f"negative reference count in {self._ref_counts}")

    def _require_taken(self, block_id: int) -> None:
        if self._ref_counts[block_id] < 1:
            raise ValueError(f"block {block_id} is free: it cannot be shared or released")
