"""The KV pool's books: which blocks are free, who holds the others, and what is kept that nobody holds."""

from collections import OrderedDict
from collections.abc import Callable, Iterable


class BlockPool:
    """Owns the ids ``0 .. num_blocks - 1`` and their reference counts; knows nothing of tokens or requests.

    Every block is in one of three states:

        free         nobody holds it, and what is in it means nothing
        cached       nobody holds it, but it has a key: whoever looks for that key may have it back
        referenced   it has holders; it may have a key, and then more holders may join

    Only cached blocks are ever evicted. Those that were never looked for again go first, the longest unused first; then
    the shared ones (found at least once), likewise. So a flood of prompts that nobody repeats does not drive out what
    many use. The shared are kept to ``MAX_SHARED`` of the pool: beyond, the longest unused lose that rank.

    The last to come back is the first to be handed out: what it held is near in the machine's caches, and memory that
    was never used costs its first user a page fault. The same calls always give the same ids. Counts only ever move
    by one: no call sets one.

    ``on_evict`` is told of each block that is evicted and the key it loses, while it still holds what that names.
    """

    MAX_SHARED = 0.75

    def __init__(self, num_blocks: int, on_evict: Callable[[int, bytes], None] | None = None) -> None:
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self.num_evictions = 0
        self._free = list(reversed(range(num_blocks)))  # the next one last
        self._ref_counts = [0] * num_blocks
        self._keys: list[bytes | None] = [None] * num_blocks
        self._by_key: dict[bytes, int] = {}
        self._was_found = [False] * num_blocks
        self._once: OrderedDict[int, None] = OrderedDict()  # cached blocks, the longest unused first
        self._shared: OrderedDict[int, None] = OrderedDict()

    @property
    def num_available(self) -> int:
        """Blocks that ``take`` can give: free ones, and cached ones that it would evict."""
        return len(self._free) + self.num_cached

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._once) + len(self._shared)

    @property
    def num_referenced(self) -> int:
        return self.num_blocks - self.num_available

    def ref_count(self, block_id: int) -> int:
        return self._ref_counts[block_id]

    def find(self, key: bytes) -> int | None:
        """The block that has this key, cached or referenced; changes nothing."""
        return self._by_key.get(key)

    def take(self, count: int) -> list[int]:
        """``count`` blocks, each with one holder and no key. ValueError, and no change, when fewer are available."""
        if count > self.num_available:
            raise ValueError(f"{count} blocks asked for, {self.num_available} available")
        taken = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block_id in taken:
            self._ref_counts[block_id] += 1
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """One more holder for each of these blocks, which are referenced or cached."""
        for block_id in block_ids:
            if self._ref_counts[block_id] == 0 and self._keys[block_id] is None:
                raise ValueError(f"block {block_id} is free: it cannot be shared")
            self._was_found[block_id] = True
            self._once.pop(block_id, None)
            self._shared.pop(block_id, None)
            self._ref_counts[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """One holder less for each; the last one gone, it is cached if it has a key, or free. ValueError for a block
        nobody holds. Of blocks that are released together, later ones are evicted last."""
        for block_id in block_ids:
            if self._ref_counts[block_id] < 1:
                raise ValueError(f"block {block_id} has no holder: it cannot be released")
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                self._retire(block_id)

    def name(self, block_id: int, key: bytes) -> None:
        """Gives a referenced block its key. Where another block has the key already, this one stays without."""
        if self._ref_counts[block_id] < 1:
            raise ValueError(f"block {block_id} has no holder: it cannot be named")
        if self._keys[block_id] is None and key not in self._by_key:
            self._keys[block_id] = key
            self._by_key[key] = block_id

    def check_integrity(self) -> None:
        """RuntimeError unless every block is exactly one of free, cached and referenced, and keys are consistent."""
        unheld = [block_id for block_id, count in enumerate(self._ref_counts) if count == 0]
        cached = [*self._once, *self._shared]
        if sorted([*self._free, *cached]) != unheld:
            raise RuntimeError(
                f"free {sorted(self._free)} and cached {sorted(cached)} differ from the blocks without holders {unheld}"
            )
        if any(count < 0 for count in self._ref_counts):
            raise RuntimeError(f"negative reference count in {self._ref_counts}")
        if any(self._keys[block_id] is None for block_id in cached) or any(
            self._keys[i] is not None for i in self._free
        ):
            raise RuntimeError("a cached block has no key, or a free one has")
        if self._by_key != {key: block_id for block_id, key in enumerate(self._keys) if key is not None}:
            raise RuntimeError("keys and blocks do not point at each other")

    def _retire(self, block_id: int) -> None:
        if self._keys[block_id] is None:
            self._free.append(block_id)
            return
        if not self._was_found[block_id]:
            self._once[block_id] = None
            return
        self._shared[block_id] = None
        if len(self._shared) > self.MAX_SHARED * self.num_blocks:
            demoted, _ = self._shared.popitem(last=False)
            self._was_found[demoted] = False
            self._once[demoted] = None

    def _evict(self) -> int:
        block_id, _ = (self._once or self._shared).popitem(last=False)
        key = self._keys[block_id]
        assert key is not None
        del self._by_key[key]
        self._keys[block_id] = None
        self._was_found[block_id] = False
        self.num_evictions += 1
        if self._on_evict is not None:
            self._on_evict(block_id, key)
        return block_id
