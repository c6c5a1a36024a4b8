"""All the scheduler sees of memory: questions (``num_*``) and commands (``allocate``, ``confirm``, ``free``)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headway.core.block_archive import BlockArchive, Transfers
from headway.core.block_pool import BlockPool
from headway.core.prefix_key import block_key, root_key
from headway.core.request import Request


class Grant(NamedTuple):
    """What an allocation gave: the blocks appended to the table, of which the first hold ``num_cached_tokens``."""

    block_ids: tuple[int, ...]
    num_cached_tokens: int = 0


_NOTHING = Grant(())
_NO_TRANSFERS = Transfers()


@dataclass(slots=True, eq=False)
class BlockTable:
    """One stay of a request in the pool. After a preemption it gets another, and steps still in flight belong to this.

    ``num_named`` of its blocks, the first, have their keys; ``coming`` is the key of the next, where it is the one that
    computes it for others too. It is damaged when a block that should have been loaded was not: nothing that is
    computed on it counts.
    """

    block_ids: list[int] = field(default_factory=list)
    num_named: int = 0
    coming: bytes | None = None
    is_damaged: bool = False


class KVCacheManager:
    """Owns every request's block table. Blocks are handed out as positions need them, and come back all at once.

    A request of 11 tokens with blocks of 4; allocate(request, 11) gave blocks 7, 2 and 9:

        position       0  1  2  3 | 4  5  6  7 | 8  9 10  . |
        block table         7     |      2     |      9     |     position p lives in table[p // 4], at offset p % 4

        allocate(request, 12) -> ()       there is room in block 9
        confirm(request's table, 8)       7 and 2 are full and computed: they get their keys
        allocate(request, 13) -> (5,)     one more block, appended to the table
        free(request)                     its blocks lose a holder: 9 and 5 are free, 7 and 2 cached until evicted

    A request that begins with the same 8 tokens and a token more is given 7 and 2 again and computes the rest. Blocks
    are shared only when they are full and computed, and nobody writes a block that has a key: at least the last token
    of a request is always computed anew, in a block of its own. So there is nothing to copy on a write either: several
    answers to one prompt share its full blocks, once the first has computed them (``is_coming``).

    Freed blocks may be handed out at once, while steps already submitted still write them: steps run in the order they
    are submitted, and a block's next owner appears only in a later step.

    With slots on disk, blocks that are evicted are kept there (``BlockArchive``). A request that begins with them is
    given fresh blocks for them, and the next batch must carry the orders to fill these (``take_transfers``). They get
    their keys as all do, when the request's first row is confirmed: until then nobody shares a block that may turn out
    not to hold what it should.
    """

    def __init__(self, num_blocks: int, block_size: int, prefix_cache: bool = True, num_disk_slots: int = 0) -> None:
        self.block_size = block_size
        self.prefix_cache = prefix_cache
        self.archive = BlockArchive(num_disk_slots) if num_disk_slots and prefix_cache else None
        self._pool = BlockPool(num_blocks, None if self.archive is None else self.archive.save)
        self._tables: dict[str, BlockTable] = {}
        self._coming: dict[bytes, Request] = {}  # by the key of the block that it computes next

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def num_available_blocks(self) -> int:
        """Blocks that can be allocated: free, or cached and not in use."""
        return self._pool.num_available

    @property
    def num_cached_blocks(self) -> int:
        return self._pool.num_cached

    @property
    def num_used_blocks(self) -> int:
        return self._pool.num_referenced

    @property
    def num_evictions(self) -> int:
        return self._pool.num_evictions

    def table(self, request: Request) -> BlockTable:
        return self._tables[request.request_id]

    def num_cached_tokens(self, request: Request) -> int:
        """Tokens that the request would find computed if it were given blocks now."""
        return len(self._find_prefix(request)) * self.block_size

    def can_begin(self, request: Request, headroom: int) -> bool:
        """Whether ``allocate`` has room for all known tokens of a request that has no blocks."""
        return self._num_to_take(self._find_prefix(request), request.num_tokens, headroom) is not None

    def is_coming(self, request: Request) -> bool:
        """Whether a request that runs is computing what this one would have to compute first."""
        if not self.prefix_cache:
            return False
        index = len(self._find_prefix(request))
        if index >= self._num_findable(request):
            return False
        other = self._coming.get(request.prefix_keys[index])
        return other is not None and other.request_class.priority <= request.request_class.priority

    def num_blocks_of(self, requests: Iterable[Request]) -> int:
        """Blocks in the tables of these requests; one that several share counts for each."""
        return sum(len(self._tables[request.request_id].block_ids) for request in requests)

    def allocate(self, request: Request, num_tokens: int, headroom: int = 0) -> Grant | None:
        """Makes room for positions ``0 .. num_tokens - 1``, of a request without blocks with what is cached of it.

        None, and no change, when that would leave fewer than ``headroom`` blocks available. Never takes blocks from
        others.
        """
        table = self._tables.get(request.request_id)
        if table is None:
            return self._open_table(request, num_tokens, headroom)
        missing = -(-num_tokens // self.block_size) - len(table.block_ids)
        if missing <= 0:
            return _NOTHING
        if missing > self._pool.num_available - headroom:
            return None
        block_ids = self._pool.take(missing)
        table.block_ids += block_ids
        return Grant(tuple(block_ids))

    def confirm(self, request: Request, table: BlockTable, num_tokens: int) -> None:
        """The first ``num_tokens`` tokens of this table are computed: its full blocks among them may be shared."""
        num_full = num_tokens // self.block_size
        if num_full <= table.num_named or not self.prefix_cache:
            return
        if not self.holds(request, table):
            return  # the request has ended, or lost these blocks
        self._work_out_keys(request, num_full)
        for index in range(table.num_named, num_full):
            self._pool.name(table.block_ids[index], request.prefix_keys[index])
        table.num_named = num_full
        self._announce(request, table)

    def holds(self, request: Request, table: BlockTable) -> bool:
        """Whether this is still the request's table."""
        return self._tables.get(request.request_id) is table

    def take_transfers(self) -> Transfers:
        """What the next batch must save and load; blocks are taken only for rows of that batch."""
        return _NO_TRANSFERS if self.archive is None else self.archive.take_transfers()

    def forget(self, slots: Sequence[int]) -> None:
        """Saves to these slots or loads from them have failed."""
        if self.archive is not None:
            self.archive.forget(slots)

    def free(self, request: Request) -> None:
        """Forgets the request's table; a request without one is no error. The end of a prefix is evicted before its
        beginning, without which it is of no use."""
        table = self._tables.pop(request.request_id, None)
        if table is not None:
            self._withdraw(table)
            self._pool.release(reversed(table.block_ids))

    def check_integrity(self) -> None:
        """RuntimeError unless the tables account for every reference count in the pool."""
        self._pool.check_integrity()
        if self.archive is not None:
            self.archive.check_integrity()
        holders = [0] * self._pool.num_blocks
        for table in self._tables.values():
            for block_id in table.block_ids:
                holders[block_id] += 1
        for block_id, count in enumerate(holders):
            if count != self._pool.ref_count(block_id):
                raise RuntimeError(f"block {block_id}: {count} holders, but counted {self._pool.ref_count(block_id)}")

    def _open_table(self, request: Request, num_tokens: int, headroom: int) -> Grant | None:
        prefix = self._find_prefix(request)
        found = [block_id for block_id in prefix if block_id is not None]
        missing = self._num_to_take(prefix, num_tokens, headroom)
        if missing is None:
            return None
        self._pool.share(found)
        table = BlockTable(found, len(found))
        if len(found) == len(prefix):
            table.block_ids += self._pool.take(missing)
        else:
            table.num_named = prefix.index(None)
            table.block_ids = self._take_and_load(request, prefix, missing)
        self._tables[request.request_id] = table
        self._announce(request, table)
        return Grant(tuple(table.block_ids), len(prefix) * self.block_size)

    def _num_to_take(self, prefix: Sequence[int | None], num_tokens: int, headroom: int) -> int | None:
        """Blocks that a request with this prefix lacks for ``num_tokens``; None when there are not so many."""
        found = [block_id for block_id in prefix if block_id is not None]
        num_to_revive = sum(self._pool.ref_count(block_id) == 0 for block_id in found)
        available = self._pool.num_available - num_to_revive - headroom
        missing = max(-(-num_tokens // self.block_size), len(prefix)) - len(found)
        return None if missing > max(available, 0) else missing

    def _take_and_load(self, request: Request, prefix: list[int | None], missing: int) -> list[int]:
        """The request's blocks, ``missing`` of them taken now: the first of these for what ``prefix`` lacks."""
        assert self.archive is not None
        keys = [key for key, block_id in zip(request.prefix_keys, prefix, strict=False) if block_id is None]
        self.archive.hold(keys)  # before blocks are taken, for which others are evicted, and saved
        taken = self._pool.take(missing)
        for key, block_id in zip(keys, taken, strict=False):
            self.archive.load(key, block_id)
        fresh = iter(taken)
        return [next(fresh) if block_id is None else block_id for block_id in prefix] + list(fresh)

    def _find_prefix(self, request: Request) -> list[int | None]:
        """The blocks that hold the request's first tokens, never its last one. None: this one is on disk."""
        found: list[int | None] = []
        if not self.prefix_cache:
            return found
        for index in range(self._num_findable(request)):
            self._work_out_keys(request, index + 1)
            key = request.prefix_keys[index]
            block_id = self._pool.find(key)
            if block_id is None and (self.archive is None or key not in self.archive):
                break
            found.append(block_id)
        return found

    def _num_findable(self, request: Request) -> int:
        """Full blocks of known tokens, but for the last token, which is always computed."""
        return (request.num_prompt_tokens + len(request.output_token_ids) - 1) // self.block_size

    def _announce(self, request: Request, table: BlockTable) -> None:
        """The next block of the prompt that this request computes is on its way, if nobody else has begun it."""
        self._withdraw(table)
        index = table.num_named
        if self.prefix_cache and (index + 1) * self.block_size <= request.num_prompt_tokens:
            self._work_out_keys(request, index + 1)
            key = request.prefix_keys[index]
            if self._coming.setdefault(key, request) is request:
                table.coming = key

    def _withdraw(self, table: BlockTable) -> None:
        if table.coming is not None:
            del self._coming[table.coming]
            table.coming = None

    def _work_out_keys(self, request: Request, count: int) -> None:
        """They follow from the tokens alone, so they are worked out once, however often the request waits or stays."""
        keys = request.prefix_keys
        for index in range(len(keys), count):
            parent = keys[-1] if index else root_key(request.cache_salt)
            start = index * self.block_size
            keys.append(block_key(parent, request.known_tokens(start, start + self.block_size)))
