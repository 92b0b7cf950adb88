"""The steps from a load's acceptance to its engine's start, in its replica's thread.

    possible at all? ─▶ fetched ─▶ its turn ─▶ enough room, once the evicted are gone?
                                                 └─▶ they are idle still ─▶ its files can run?
                                                     └─▶ asleep or unloaded ─▶ begin

Nothing is unloaded for a load that cannot run anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from inference.loading.progress import OnProgress
from inference.loading.sources.fetch import Fetched
from inference.loading.sources.sources import check_local_path, local_file_bytes
from inference.neuron.errors import LoadRefusedError
from inference.neuron.loads.load import (
    Load,
    Room,
    check_possible,
    check_room,
    check_waking,
    lost_its_room,
    needed_bytes,
    waking_bytes,
)
from inference.neuron.loads.queue import LoadQueue
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import MissingFileError
from inference.protocol.load_report import AsleepBytes, LoadFailure, LoadProgress, LoadStage

if TYPE_CHECKING:
    from inference.neuron.replicas.replica import Replica

POLL_S = 0.2
LEAVING_LIMIT_S = 300.0
"""A model whose process the kernel does not end must not block the turn of all later loads."""
MEMORY_COMES_BACK_S = 5.0
"""A driver releases a process' memory some moments after its end."""

IsCancelled = Callable[[], bool]


class LoadAdmission:
    def __init__(
        self,
        loads: LoadQueue,
        *,
        fetch: Callable[[LoadSpec, OnProgress, IsCancelled], Fetched | None],
        check_files: Callable[[LoadSpec, Sequence[Path], int, IsCancelled], None],
        find: Callable[[str], Replica | None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._loads = loads
        self._fetch = fetch
        self._check_files = check_files
        self._find = find
        self._clock = clock
        self._sleep = sleep

    def admit(self, load: Load, is_cancelled: IsCancelled, report: OnProgress) -> LoadSpec | None:
        """``None``: cancelled. Raises ``LoadRefusedError``. Where it returns a spec, the load has
        the turn and its memory."""
        check_possible(load.spec, self._loads.devices())
        try:
            check_local_path(load.spec)  # before anything is unloaded for it
        except MissingFileError as error:
            raise LoadRefusedError(error.failure) from None
        if not load.claims:
            self._loads.accept(load)
        fetched = self._fetch(load.spec, report, is_cancelled)
        if fetched is not None:
            load.weights = tuple(Path(path) for path in fetched.weights)
            load.new_files |= fetched.new_files
            self._loads.expect(load, fetched.weight_bytes)
            load.file_bytes = fetched.weight_bytes
        else:
            load.file_bytes = local_file_bytes(load.spec, self._loads.most_free_bytes())
        room = self._room_in_turn(load, is_cancelled, report)
        return None if room is None else self._loads.begin(load, room)

    def readmit(self, load: Load, is_cancelled: IsCancelled, report: OnProgress) -> bool:
        """``False``: cancelled. Raises ``LoadRefusedError``. Where it returns ``True``, the load
        has the turn and its memory."""
        is_waking = False
        try:
            if self._room_in_turn(load, is_cancelled, report) is not None:
                self._loads.begin_waking(load)
                is_waking = True
        finally:
            if not is_waking:
                self._loads.leave(load)
        return is_waking

    def _room_in_turn(
        self, load: Load, is_cancelled: IsCancelled, report: OnProgress
    ) -> Room | None:

        def report_queued(detail: str) -> None:
            report(LoadProgress(stage=LoadStage.QUEUED, detail=detail))

        def report_first(first: str) -> None:
            report_queued(f"{first} is loaded first")

        if is_cancelled() or not self._loads.enter(load, is_cancelled, report_first):
            return None
        if not self._make_room(load, is_cancelled, report_queued):
            return None
        deadline_s = self._clock() + MEMORY_COMES_BACK_S
        while True:
            room = self._loads.room(load)
            try:
                _check(load, room)
            except LoadRefusedError:
                if not load.spec.evict or self._clock() > deadline_s:
                    raise
                self._sleep(POLL_S)
            else:
                return room

    def _make_room(
        self, load: Load, is_cancelled: IsCancelled, report: Callable[[str], None]
    ) -> bool:
        found = [self._find(model) for model in load.spec.evict if model != load.spec.model]
        leaving = [replica for replica in found if replica is not None]
        sleepers = self._sleepers(load, leaving)
        gone = [one.load for one in leaving if one.spec.model not in sleepers]
        asleep = [
            (one.load, as_asleep)
            for one in leaving
            if one.spec.model in sleepers and (as_asleep := one.may_sleep_as) is not None
        ]
        room = self._loads.room(load, gone, asleep)
        _check(load, room, [replica.spec.model for replica in leaving])
        if busy := [replica.spec.model for replica in leaving if not replica.is_idle()]:
            raise lost_its_room(busy)
        if leaving and load.asleep is None:  # a waking model has its weights in memory
            self._check_files(load.spec, load.weights, room.largest_bytes(load.spec), is_cancelled)
            if is_cancelled():
                return False
        for replica in leaving:
            if not replica.leave_if_idle(may_sleep=replica.spec.model in sleepers):
                raise lost_its_room([replica.spec.model])
        for replica in leaving:
            deadline_s = self._clock() + LEAVING_LIMIT_S
            while not replica.wait_left(POLL_S):
                report(f"{replica.spec.model} makes room")
                if is_cancelled():
                    return False
                if self._clock() > deadline_s:
                    raise _did_not_leave(replica.spec.model)
        return not is_cancelled()

    def _sleepers(self, load: Load, leaving: Sequence[Replica]) -> frozenset[str]:
        if load.spec.stages:
            return frozenset()  # each of its devices may lack memory
        asleep = [one.may_sleep_as if _share_a_device(load, one.load) else None for one in leaving]
        if not any(asleep):
            return frozenset()
        room = self._loads.room(load)
        device = room.devices[0]
        able = [
            Leaving(
                model=one.spec.model,
                device=device,
                held_bytes=one.load.used.get(device, next(iter(one.load.used.values()), 0)),
                asleep=as_asleep,
            )
            for one, as_asleep in zip(leaving, asleep, strict=True)
        ]
        needed = _needed_bytes(load, device)
        lacking = None if needed is None else needed - room.limit_bytes
        return choose_sleepers(able, lacking_bytes=lacking, host_bytes=self._loads.host_bytes())


def _did_not_leave(model: str) -> LoadRefusedError:
    message = f"{model} was to make room and has not left after {LEAVING_LIMIT_S:.0f} s"
    return LoadRefusedError(LoadFailure(code="load_stalled", message=message))


def _needed_bytes(load: Load, device: str) -> int | None:
    if load.asleep is not None:
        return waking_bytes(load.used.get(device, 0), load.asleep, device)
    return needed_bytes(load.spec, device)


def _check(load: Load, room: Room, evicted: Sequence[str] = ()) -> None:
    for device in room.devices if load.asleep or load.spec.stages else room.devices[:1]:
        limit_bytes = room.limits[device] if load.asleep or load.spec.stages else room.limit_bytes
        if load.asleep is not None:
            needed = waking_bytes(load.used.get(device, 0), load.asleep, device)
            check_waking(needed, device, limit_bytes, evicted)
        else:
            check_room(load.spec, device, limit_bytes, evicted, load.file_bytes)


def _share_a_device(load: Load, other: Load) -> bool:
    return not load.spec.devices or bool({*load.spec.devices, *load.devices} & {*other.devices})


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    model: str
    device: str = ""
    held_bytes: int
    asleep: AsleepBytes | None
    """``None``: it cannot sleep, or does already."""

    @property
    def withheld_bytes(self) -> int:
        return 0 if self.asleep is None else min(self.held_bytes, self.asleep.on(self.device))


def choose_sleepers(
    leaving: Sequence[Leaving], *, lacking_bytes: int | None, host_bytes: int
) -> frozenset[str]:
    """Chooses the cheapest to keep first. A sleeping model comes back several times faster, but
    keeps some device memory, and host memory for its weights. ``lacking_bytes`` must be freed;
    ``None``: unknown, so none sleeps."""
    if lacking_bytes is None:
        return frozenset()
    spare_bytes = sum(one.held_bytes for one in leaving) - lacking_bytes
    sleepers = set()
    for one in sorted(leaving, key=lambda one: (one.withheld_bytes, one.model)):
        if one.asleep is None:
            continue
        if one.withheld_bytes <= spare_bytes and one.asleep.host_bytes <= host_bytes:
            spare_bytes -= one.withheld_bytes
            host_bytes -= one.asleep.host_bytes
            sleepers.add(one.model)
    return frozenset(sleepers)
