"""What happens between a load's acceptance and its engine's start, in its replica's thread.

    possible at all? ─▶ fetched ─▶ its turn ─▶ enough room, once the evicted are gone?
                                                 └─▶ they are idle still ─▶ unloaded ─▶ begin

Nothing is unloaded for a load that would not fit even then, or that was cancelled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from inference.loading.fetch import Fetched
from inference.neuron.errors import LoadRefusedError
from inference.neuron.load_needs import check_possible, check_room, lost_its_room
from inference.neuron.load_queue import Load, LoadQueue, Room
from inference.protocol.load import LoadProgress, LoadSpec, LoadStage

LOOK_AGAIN_S = 0.2
"""At a cancel, while an evicted model ends."""
MEMORY_COMES_BACK_S = 5.0
"""A driver gives back what a process held some moments after its end."""

Tell = Callable[[LoadProgress], None]
IsCancelled = Callable[[], bool]
Fetch = Callable[[LoadSpec, Tell, IsCancelled], Fetched | None]
"""Gets a load's files onto the disk. ``None``: cancelled, or not to be downloaded. Raises
``LoadRefusedError``."""


class Evictable(Protocol):
    """A replica, to a load that wants its room."""

    spec: LoadSpec

    @property
    def load(self) -> Load: ...
    def is_idle(self) -> bool: ...
    def drain_if_idle(self) -> bool: ...
    def wait_gone(self, timeout_s: float | None = None) -> bool: ...


class LoadAdmission:
    def __init__(
        self,
        loads: LoadQueue,
        *,
        fetch: Fetch,
        find: Callable[[str], Evictable | None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``find`` gives the replica of a model that is here."""
        self._loads = loads
        self._fetch = fetch
        self._find = find
        self._clock = clock
        self._sleep = sleep

    def admit(self, load: Load, is_cancelled: IsCancelled, tell: Tell) -> LoadSpec | None:
        """What the engine is told; ``None``: cancelled. Raises ``LoadRefusedError``. The load has
        the turn when this returns a spec, and memory of its own."""
        check_possible(load.spec, self._loads.devices())
        if self._loads.holding(load) is None:
            self._loads.accept(load)
        fetched = self._fetch(load.spec, tell, is_cancelled)
        if fetched is not None:
            load.weights = tuple(Path(path) for path in fetched.weights)
            load.new_files |= fetched.new_files
            self._loads.expect(load, fetched.weight_bytes)

        def tell_waiting(first: str) -> None:
            tell(LoadProgress(stage=LoadStage.QUEUED, detail=f"{first} is loaded first"))

        if is_cancelled() or not self._loads.enter(load, is_cancelled, tell_waiting):
            return None
        if not self._make_room(load, is_cancelled, tell):
            return None
        return self._loads.begin(load, self._room_now(load))

    def _make_room(self, load: Load, is_cancelled: IsCancelled, tell: Tell) -> bool:
        """``False``: cancelled meanwhile."""
        leaving = self._leaving(load)
        names = [replica.spec.model for replica in leaving]
        room = self._loads.room(load, [replica.load for replica in leaving])
        _check(load.spec, room, names)
        if busy := [replica.spec.model for replica in leaving if not replica.is_idle()]:
            raise lost_its_room(busy)
        for replica in leaving:
            if not replica.drain_if_idle():
                raise lost_its_room([replica.spec.model])
        for replica in leaving:
            progress = LoadProgress(
                stage=LoadStage.QUEUED, detail=f"{replica.spec.model} makes room"
            )
            while not replica.wait_gone(LOOK_AGAIN_S):
                tell(progress)
                if is_cancelled():
                    return False
        return not is_cancelled()

    def _leaving(self, load: Load) -> list[Evictable]:
        """What is gone already needs no eviction."""
        found = [self._find(model) for model in load.spec.evict if model != load.spec.model]
        return [replica for replica in found if replica is not None]

    def _room_now(self, load: Load) -> Room:
        deadline_s = self._clock() + MEMORY_COMES_BACK_S
        while True:
            room = self._loads.room(load)
            if not load.spec.evict or self._clock() > deadline_s or _is_enough(load.spec, room):
                _check(load.spec, room)
                return room
            self._sleep(LOOK_AGAIN_S)


def _check(spec: LoadSpec, room: Room, evicted: Sequence[str] = ()) -> None:
    check_room(spec, room.devices[0], room.limit_bytes, evicted)


def _is_enough(spec: LoadSpec, room: Room) -> bool:
    try:
        _check(spec, room)
    except LoadRefusedError:
        return False
    return True
