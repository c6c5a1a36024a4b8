"""What is kept on disk of evicted blocks: which slot has what, and the orders that move blocks there and back."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headway.core.batch import BlockTransfer


class Transfers(NamedTuple):
    """Of one batch, in the order of their effect."""

    saves: tuple[BlockTransfer, ...] = ()
    loads: tuple[BlockTransfer, ...] = ()


class BlockArchive:
    """Owns the slots ``0 .. num_slots - 1``, each with room for a block, and their keys; knows nothing of files.

    A block that the pool evicts leaves a copy here, until the room is needed: the slot that was longest neither saved,
    evicted once more nor loaded gives way. A block that was loaded keeps its slot, so its next eviction writes nothing.

    Nothing is moved here: orders are collected, and the next batch carries them. In it saves come first, then loads,
    then rows, and batches run in order. That is why each transfer meets the content it is meant for:

        save            the block's new owner has its first row, or its load, in the same batch: both come later
        load            its slot was saved by an earlier batch, or by an earlier order of this one. No save of this
                        batch takes it away before (``hold``), and what later batches save there comes later
        loaded block    it was taken for this batch. Evicted for it, it was saved before; and it cannot be evicted
                        again before a later batch, since it has a holder and no key until its rows are confirmed
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.num_saves = 0
        self.num_loads = 0
        self.num_failures = 0  # slots whose save or load has failed
        self._num_begun = 0  # slots that were ever used, the first ones
        self._free: list[int] = []  # of these
        self._slots: OrderedDict[bytes, int] = OrderedDict()  # by key, the longest unused first
        self._keys: dict[int, bytes] = {}  # by slot
        self._held: set[bytes] = set()  # to be loaded by the next batch
        self._saves: list[BlockTransfer] = []
        self._loads: list[BlockTransfer] = []

    def __contains__(self, key: bytes) -> bool:
        return key in self._slots

    def __len__(self) -> int:
        return len(self._slots)

    def save(self, block_id: int, key: bytes) -> None:
        """Orders a copy of a block that is being evicted, unless there is one already, or no slot may give way."""
        if key in self._slots:
            self._slots.move_to_end(key)
            return
        slot = self._take_slot()
        if slot is None:
            return
        self._slots[key] = slot
        self._keys[slot] = key
        self._saves.append(BlockTransfer(block_id, slot))
        self.num_saves += 1

    def hold(self, keys: Iterable[bytes]) -> None:
        """These are about to be loaded: until the next batch has gone, no save takes their slots."""
        for key in keys:
            self._slots.move_to_end(key)
            self._held.add(key)

    def load(self, key: bytes, block_id: int) -> None:
        """Orders a block that is held to be read into ``block_id``."""
        if key not in self._held:
            raise ValueError("a block must be held before it is loaded")
        self._loads.append(BlockTransfer(block_id, self._slots[key]))
        self.num_loads += 1

    def take_transfers(self) -> Transfers:
        """All orders since the last call, for the next batch to carry."""
        transfers = Transfers(tuple(self._saves), tuple(self._loads))
        self._saves.clear()
        self._loads.clear()
        self._held.clear()
        return transfers

    def forget(self, slots: Sequence[int]) -> None:
        """What was to be saved to these, or loaded from them, is lost. Of a slot that has been given to another key
        since then, that one is forgotten too, which costs a block and nothing else."""
        self.num_failures += len(slots)
        for slot in slots:
            key = self._keys.pop(slot, None)
            if key is not None:
                del self._slots[key]
                self._free.append(slot)

    def check_integrity(self) -> None:
        """RuntimeError unless every slot is either free or the slot of one key."""
        if self._slots != {key: slot for slot, key in self._keys.items()}:
            raise RuntimeError("keys and slots do not point at each other")
        if sorted([*self._free, *self._slots.values()]) != list(range(self._num_begun)):
            raise RuntimeError(f"free slots {sorted(self._free)} and taken ones {sorted(self._slots.values())}")

    def _take_slot(self) -> int | None:
        if self._free:
            return self._free.pop()
        if self._num_begun < self.num_slots:
            self._num_begun += 1
            return self._num_begun - 1
        key = next((key for key in self._slots if key not in self._held), None)
        return None if key is None else self._slots.pop(key)
