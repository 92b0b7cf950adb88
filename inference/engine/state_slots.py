"""The slots of recurrent states: reference counts, and snapshots that later prompts start from.
Only integers; the tensors are elsewhere (``inference.models.paged_kv``).

A written slot is never written again while it has references. A running sequence holds two: each
step reads one and writes the other, and a commit swaps them. So a failed step has changed nothing,
and a snapshot costs no copy: it is one more reference.

    step      reads  writes          commit
    prompt    0      7               7 is the state, 4 is written next
    prompt    7      4               4 is the state, 7 is written next
              ... 4 is kept as a snapshot: the next commit takes a fresh slot instead of it

Slot 0 is the state of a sequence that has no tokens yet, and is never written.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Set

from inference.engine.errors import IntegrityError
from inference.engine.sequence import Sequence

EMPTY_SLOT = 0
SLOTS_PER_SEQUENCE = 2


class StateSlots:
    """Hands out slots 1 … num_slots - 1. Sets the two slots of a ``Sequence``."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, EMPTY_SLOT, -1))
        self._references = [0] * num_slots
        self._snapshots: OrderedDict[int, int] = OrderedDict()
        """Content id of a prefix's last block -> the slot of its state; the next to go first."""
        self._num_holders = 0

    @property
    def has_free_slots(self) -> bool:
        """Snapshots give way to a new sequence."""
        return SLOTS_PER_SEQUENCE * (self._num_holders + 1) < self.num_slots

    @property
    def num_snapshots(self) -> int:
        return len(self._snapshots)

    def admit(self, sequence: Sequence, content_id: int | None) -> None:
        """Starts from the empty state without a snapshot. The caller checks ``has_free_slots``."""
        read = EMPTY_SLOT
        if content_id is not None:
            read = self._snapshots[content_id]
            self._references[read] += 1
            self._snapshots.move_to_end(content_id)
        self._num_holders += 1
        sequence.state_slot = read
        sequence.next_state_slot = self._allocate()

    def advance(self, sequence: Sequence) -> None:
        """Call it once the step that wrote the sequence's next slot is committed."""
        read, written = sequence.state_slot, sequence.next_state_slot
        assert read is not None and written is not None
        sequence.state_slot = written
        if read != EMPTY_SLOT and self._references[read] == 1:
            sequence.next_state_slot = read
            return
        self._drop(read)
        sequence.next_state_slot = self._allocate()

    def release(self, sequence: Sequence) -> None:
        """Its own snapshot becomes the newest one."""
        if sequence.state_slot is None or sequence.next_state_slot is None:
            return
        if sequence.snapshot is not None and sequence.snapshot in self._snapshots:
            self._snapshots.move_to_end(sequence.snapshot)
        self._drop(sequence.state_slot)
        self._drop(sequence.next_state_slot)
        self._num_holders -= 1
        sequence.state_slot = sequence.next_state_slot = sequence.snapshot = None

    def has_snapshot(self, content_id: int) -> bool:
        return content_id in self._snapshots

    def keep(self, sequence: Sequence, content_id: int) -> None:
        if content_id in self._snapshots:
            self._snapshots.move_to_end(content_id)
            return
        assert sequence.state_slot is not None
        self._references[sequence.state_slot] += 1
        self._snapshots[content_id] = sequence.state_slot

    def replace_decode_snapshot(self, sequence: Sequence, content_id: int) -> None:
        """A decoding sequence keeps one snapshot, evicted first to spare those of prompts."""
        if content_id in self._snapshots:
            return
        if sequence.snapshot is not None:
            self.forget(sequence.snapshot)
        self.keep(sequence, content_id)
        self._snapshots.move_to_end(content_id, last=False)
        sequence.snapshot = content_id

    def forget(self, content_id: int) -> None:
        """Sequences that read the slot continue."""
        if (slot := self._snapshots.pop(content_id, None)) is not None:
            self._drop(slot)

    def _allocate(self) -> int:
        if not self._free:
            self._evict()
        slot = self._free.pop()
        self._references[slot] = 1
        return slot

    def _evict(self) -> None:
        """A snapshot that no sequence reads exists: there are more than two slots a sequence."""
        content_id = next(c for c, slot in self._snapshots.items() if self._references[slot] == 1)
        self.forget(content_id)

    def _drop(self, slot: int) -> None:
        if slot == EMPTY_SLOT:
            return
        self._references[slot] -= 1
        if self._references[slot] == 0:
            self._free.append(slot)

    def check_integrity(self, live: Iterable[Sequence]) -> None:
        """``live``: every sequence that holds slots. Raises ``IntegrityError``."""
        expected = [0] * self.num_slots
        holders = list(live)
        for slot in (*self._snapshots.values(), *_held(holders)):
            expected[slot] += 1
        expected[EMPTY_SLOT] = 0
        if expected != self._references:
            raise IntegrityError("references to state slots differ from what is held")
        if sorted(self._free) != [s for s in range(1, self.num_slots) if expected[s] == 0]:
            raise IntegrityError("free state slots are not exactly the unreferenced ones")
        if any(expected[s.next_state_slot or EMPTY_SLOT] != 1 for s in holders):
            raise IntegrityError("a step would write to a state slot that somebody refers to")
        if len(holders) != self._num_holders:
            raise IntegrityError("not every running sequence holds state slots")

    def check_known(self, content_ids: Set[int]) -> None:
        if not self._snapshots.keys() <= content_ids:
            raise IntegrityError("a snapshot is of a prefix that nobody can find")


def _held(sequences: Iterable[Sequence]) -> Iterator[int]:
    for sequence in sequences:
        for slot in (sequence.state_slot, sequence.next_state_slot):
            if slot is None:
                raise IntegrityError(f"{sequence.sequence_id} runs without state slots")
            yield slot
