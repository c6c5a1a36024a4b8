"""All the scheduler sees of memory: questions (``num_*``) and commands (``allocate``, ``free``)."""

from headway.core.block_pool import BlockPool
from headway.core.request import Request


class KVCacheManager:
    """Owns every request's block table. Blocks are handed out as positions need them, and come back all at once.

    A request of 11 tokens with blocks of 4; allocate(request, 11) gave blocks 7, 2 and 9:

        position       0  1  2  3 | 4  5  6  7 | 8  9 10  . |
        block table         7     |      2     |      9     |     position p lives in table[p // 4], at offset p % 4

        allocate(request, 12) -> ()       there is room in block 9
        allocate(request, 13) -> (5,)     one more block, appended to the table
        free(request)                     7, 2, 9 and 5 lose their holder

    Freed blocks may be handed out at once, while steps already submitted still write them: steps run in the order they
    are submitted, and a block's next owner appears only in a later step.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self._pool = BlockPool(num_blocks)
        self._tables: dict[str, list[int]] = {}

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        return self._pool.num_free

    @property
    def num_used_blocks(self) -> int:
        return self._pool.num_used

    def allocate(self, request: Request, num_tokens: int, headroom: int = 0) -> tuple[int, ...] | None:
        """Makes room for positions ``0 .. num_tokens - 1`` and returns the blocks added to the table.

        None, and no change, when that would leave fewer than ``headroom`` blocks free. Never takes blocks from others.
        """
        missing = -(-num_tokens // self.block_size) - len(self._tables.get(request.request_id, ()))
        if missing <= 0:
            return ()
        if missing + headroom > self._pool.num_free:
            return None
        block_ids = self._pool.take(missing)
        self._tables.setdefault(request.request_id, []).extend(block_ids)
        return tuple(block_ids)

    def free(self, request: Request) -> None:
        """Forgets the request's table; a request without one is no error."""
        self._pool.release(self._tables.pop(request.request_id, ()))

    def check_integrity(self) -> None:
        """RuntimeError unless the tables account for every reference count in the pool."""
        self._pool.check_integrity()
        holders = [0] * self._pool.num_blocks
        for table in self._tables.values():
            for block_id in table:
                holders[block_id] += 1
        for block_id, count in enumerate(holders):
            if count != self._pool.ref_count(block_id):
                raise RuntimeError(f"block {block_id}: {count} holders, but counted {self._pool.ref_count(block_id)}")
