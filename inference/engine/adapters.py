"""The engine's adapters: slots of loaded ones, their users, and the sequences that wait for one.

    requested ──a slot is free or idle──▶ loading ──▶ resident ──idle, slot is needed──▶ evicted
        │ no slot: waits                     │ refused
        └───────────── the sequence is held ─┴─▶ its sequences fail

For the engine's thread; files are read and weights prepared in another. Knows no tensors.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inference.engine.errors import AdapterError
from inference.engine.sequence import Sequence
from inference.protocol.load import DEFAULT_ADAPTER_SLOTS, AdapterSpec

if TYPE_CHECKING:
    from inference.engine.load.build import AdapterLoader

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    prepared: Any
    fingerprint: str
    """Sequences whose adapters have one fingerprint may share blocks."""


@dataclass(eq=False, slots=True)
class _Slot:
    spec: AdapterSpec
    future: Future[LoadedAdapter]
    loaded: LoadedAdapter | None = None
    users: set[str] = field(default_factory=set)
    waiting: list[Sequence] = field(default_factory=list)
    is_dropped: bool = False


class Adapters:
    def __init__(
        self, source: AdapterLoader | None, num_slots: int = DEFAULT_ADAPTER_SLOTS
    ) -> None:
        self._source = source
        self._num_slots = num_slots
        self._slots: dict[AdapterSpec, _Slot] = {}
        """The least recently used first."""
        self._of_sequence: dict[str, _Slot] = {}
        self._without_slot: list[tuple[Sequence, AdapterSpec]] = []

    @property
    def names(self) -> list[str]:
        return [slot.spec.name for slot in self._slots.values() if slot.loaded is not None]

    @property
    def are_in_use(self) -> bool:
        return bool(self._of_sequence)

    def problem(self) -> str | None:
        if self._source is None or self._num_slots == 0:
            return "this replica takes no adapters"
        return None

    def add(self, sequence: Sequence, spec: AdapterSpec) -> None:
        sequence.awaits_adapter = True
        self._without_slot.append((sequence, spec))
        self._give_slots()

    def forget(self, sequence: Sequence) -> None:
        if (slot := self._of_sequence.pop(sequence.sequence_id, None)) is not None:
            slot.users.discard(sequence.sequence_id)
            if slot.is_dropped and not slot.users:
                self._remove(slot)
        elif sequence.awaits_adapter:
            self._without_slot = [w for w in self._without_slot if w[0] is not sequence]

    def drop(self, name: str) -> None:
        for slot in [slot for slot in self._slots.values() if slot.spec.name == name]:
            slot.is_dropped = True
            if not slot.users:
                self._remove(slot)

    @property
    def futures(self) -> list[Future[LoadedAdapter]]:
        """Sequences wait for these."""
        return [slot.future for slot in self._slots.values() if slot.waiting]

    def take_done(self) -> list[tuple[Sequence, str]]:
        """Returns the sequences whose adapter cannot be loaded, with a message for the client."""
        if not self._without_slot and not any(slot.waiting for slot in self._slots.values()):
            return []
        self._give_slots()
        refused = []
        for slot in [s for s in self._slots.values() if s.waiting and s.future.done()]:
            waiting, slot.waiting = slot.waiting, []
            live = [s for s in waiting if s.sequence_id in slot.users]
            if (problem := self._finish(slot)) is not None:
                refused += [(sequence, problem) for sequence in live]
                continue
            for sequence in live:
                self._attach(sequence, slot)
        return refused

    def _finish(self, slot: _Slot) -> str | None:
        if slot.loaded is not None:
            return None
        name, error = slot.spec.name, slot.future.exception()
        if error is None:
            slot.loaded = slot.future.result()
            log.info("adapter %s is loaded", name)
            return None
        self._remove(slot)
        if isinstance(error, AdapterError):
            log.warning("adapter %s is not loaded: %s", name, error)
            return f"the adapter {name} cannot be loaded: {error}"
        log.error("loading adapter %s broke", name, exc_info=error)
        return f"the adapter {name} cannot be loaded; the neuron's log has the details"

    def _give_slots(self) -> None:
        still: list[tuple[Sequence, AdapterSpec]] = []
        for sequence, spec in self._without_slot:
            slot = self._slots.get(spec)
            if slot is None or slot.is_dropped:
                slot = None if slot is not None else self._begin(spec)
            if slot is None:
                still.append((sequence, spec))
                continue
            self._slots[spec] = self._slots.pop(spec)
            slot.users.add(sequence.sequence_id)
            self._of_sequence[sequence.sequence_id] = slot
            if slot.loaded is not None:
                self._attach(sequence, slot)
            else:
                slot.waiting.append(sequence)
        self._without_slot = still

    def _begin(self, spec: AdapterSpec) -> _Slot | None:
        assert self._source is not None, "admission has checked `problem`"
        if len(self._slots) >= self._num_slots:
            idle = next((slot for slot in self._slots.values() if not slot.users), None)
            if idle is None:
                return None
            log.info("adapter %s leaves its slot to %s", idle.spec.name, spec.name)
            self._remove(idle)
        slot = self._slots[spec] = _Slot(spec, self._source.load(spec))
        return slot

    def _attach(self, sequence: Sequence, slot: _Slot) -> None:
        assert slot.loaded is not None
        sequence.adapter = slot.loaded.prepared
        sequence.salt_with(slot.loaded.fingerprint)
        sequence.awaits_adapter = False

    def _remove(self, slot: _Slot) -> None:
        if self._slots.get(slot.spec) is slot:
            del self._slots[slot.spec]
