"""The queue of a neuron's loads, which also grants them memory.

    accept ─▶ (fetch) ─▶ enter … its turn ─▶ begin ─▶ started ─▶ loaded ─▶ release
       │                     │                │                    │
       └─ what it will take  └─ one load at   └─ what it may take  └─ engine_ended ─▶ begin_again
          is kept for it        a time           is in its spec        its memory is its own still

The ``MemoryLedger``, which is pure, has the promises; this module has the lock and the
measurements. A load that downloads first blocks no other: it enters the queue once its files are on
the disk. Called from the replicas' threads and the heartbeat's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

import msgspec

from inference.neuron.host.device_sampler import Devices
from inference.neuron.loads.device_choice import KINDS, choose_devices
from inference.neuron.loads.load import HostPart, Load, Room, spec_for_engine
from inference.neuron.loads.memory_ledger import NO_LIMITS, Holding, MemoryLedger
from inference.neuron.loads.needs import expected_bytes, needed_bytes
from inference.neuron.replicas.sleep_choice import HOST_SHARE_KEPT
from inference.protocol.heartbeat import DeviceInfo, device_name
from inference.protocol.load import AsleepBytes, LoadReport, LoadSpec
from inference.settings.memory_limits import MemoryLimits
from inference.settings.neuron import MEMORY_LIMIT

LOOK_AGAIN_S = 1.0
"""While a load waits. Its turn and its cancel wake it at once."""


class LoadQueue:
    def __init__(self, devices: Devices, limits: MemoryLimits = NO_LIMITS) -> None:
        """``limits``: what the operator lets models use of each device."""
        self._devices = devices
        self._limits = limits
        self._changed = threading.Condition()
        self._ledger = MemoryLedger(limits)
        self._waiting: list[Load] = []
        """The loads whose files are there; the first one has its turn."""

    def devices(self) -> list[DeviceInfo]:
        """The devices as last measured, within the operator's limits, less promised memory that is
        not allocated yet. Returns at once."""
        measured = self._devices.devices()
        with self._changed:
            self._note_held(measured)
            return self._ledger.without_promised(measured)

    def free_bytes(self) -> dict[str, int]:
        """Free bytes of each device by the last measurement, within the operator's limits, promised
        or not."""
        measured = self._devices.devices()
        with self._changed:
            self._note_held(measured)
            limited = self._ledger.within_limits(measured)
        return {device_name(one): one.free_memory_bytes for one in limited}

    def limit_problems(self) -> list[str]:
        """Limits of devices that are not here, in words."""
        here = [device_name(one) for one in self._devices.devices()]
        return [
            f"{MEMORY_LIMIT.name} names {name}, which is not here; this neuron has "
            f"{', '.join(here)}"
            for name in self._limits.devices
            if name not in here
        ]

    def most_free_bytes(self) -> int:
        """Free bytes of the device that a load without a named device goes to."""
        devices = self.devices()
        kind = min((device.kind for device in devices), key=KINDS.index, default="cpu")
        return max((one.free_memory_bytes for one in devices if one.kind == kind), default=0)

    def holding(self, load: Load) -> Holding | None:
        with self._changed:
            return self._ledger.holding(load)

    def accept(self, load: Load) -> None:
        """What it will take is kept for it from now on, as far as that is known. Raises
        ``LoadRefusedError`` for a device that is not here."""
        devices = choose_devices(load.spec, self.devices())
        with self._changed:
            load.devices = tuple(devices)
            self._ledger.accept(load, devices, expected_bytes(load.spec, devices[0], None))

    def expect(self, load: Load, file_bytes: int) -> None:
        """Records how large its weight files are, once they are on the disk."""
        with self._changed:
            if (holding := self._ledger.holding(load)) is not None:
                num_bytes = expected_bytes(load.spec, holding.devices[0], file_bytes)
                self._ledger.settle(load, num_bytes)

    def enter(
        self, load: Load, is_cancelled: Callable[[], bool], report: Callable[[str], None]
    ) -> bool:
        """Waits for the turn, which ends with ``loaded`` or ``release``. ``report`` is called with
        the model that has it. ``False``: cancelled."""
        with self._changed:
            self._waiting.append(load)
            while self._waiting[0] is not load and not is_cancelled():
                report(self._waiting[0].spec.model)
                self._changed.wait(LOOK_AGAIN_S)
            if is_cancelled():
                self._leave(load)
                return False
        return True

    def wake(self) -> None:
        """Wake the waiting loads: one was cancelled."""
        with self._changed:
            self._changed.notify_all()

    def room(
        self, load: Load, gone: Collection[Load] = (), asleep: Sequence[tuple[Load, int]] = ()
    ) -> Room:
        """Measured now, and as if ``gone`` had given theirs back, and ``asleep`` all but so much.
        On the devices that the spec names, else on the freest; where it sleeps, where it is."""
        measured = self._devices.measure()
        with self._changed:
            self._note_held(measured)
            free = {device_name(device): device.free_memory_bytes for device in measured}
            limits = {
                name: self._ledger.limit_bytes(
                    load, name, free[name], needed_bytes(load.spec, name), gone, asleep
                )
                for name in free
            }
        names = list(load.devices)
        if load.asleep is None:
            names = choose_devices(
                load.spec,
                [
                    msgspec.structs.replace(device, free_memory_bytes=limits[device_name(device)])
                    for device in measured
                ],
            )
        return Room(
            devices=tuple(names),
            limit_bytes=min(limits[name] for name in names),
            promised_bytes=max(max(0, free[name] - limits[name]) for name in names),
        )

    def begin(self, load: Load, room: Room) -> LoadSpec:
        """Begins the load whose turn has come. Returns the spec for its engine."""
        expected = expected_bytes(load.spec, room.devices[0], None)
        measured = self._devices.measure()
        with self._changed:
            kept = self._ledger.holding(load)
            assert kept is not None
            num_bytes = min(max(expected, kept.num_bytes), room.limit_bytes)
            load.devices = room.devices
            self._ledger.begin(load, room.devices, num_bytes)
            self._note_start(load, measured)
        # The evicted replicas have left: an engine that restarts evicts none.
        load.spec = msgspec.structs.replace(load.spec, evict=[])
        return spec_for_engine(load, room)

    def begin_again(self, load: Load) -> LoadSpec:
        """Begin the load again after its engine died. Its memory stays reserved for the next
        engine."""
        measured = self._devices.measure()
        with self._changed:
            holding = self._ledger.holding(load)
            assert holding is not None and load.is_settled
            self._note_held(measured)
            self._note_start(load, measured)
            free = {device_name(device): device.free_memory_bytes for device in measured}
            promised = [
                free[name] - self._ledger.limit_bytes(load, name, free[name], holding.num_bytes)
                for name in holding.devices
            ]
        room = Room(
            devices=holding.devices,
            limit_bytes=holding.num_bytes,
            promised_bytes=max(0, *promised) if promised else 0,
        )
        return spec_for_engine(load, room)

    def started(self, load: Load, pid: int) -> None:
        with self._changed:
            load.pid = pid

    def loaded(self, load: Load, report: LoadReport) -> None:
        """The next one has its turn."""
        with self._changed:
            load.free_at_start = {}
            load.is_settled = report.actual_bytes > 0
            took_bytes = report.process_bytes + report.actual_bytes if load.is_settled else 0
            load.took_bytes = took_bytes // max(1, len(load.devices))
            self._ledger.settle(load, load.took_bytes)
            self._leave(load)

    def keep_host_room(self, load: Load, host_bytes: int) -> bool:
        """Before it falls asleep: whether the host has room for its weights, which is its own from
        now on until ``host_room_unused``, or until it is awake or gone."""
        if host_bytes == 0:
            return True
        measured = self._devices.measure()
        with self._changed:
            self._note_held(measured)
            is_kept = self._ledger.holding(HostPart(load)) is not None
            if is_kept or host_bytes > self._host_bytes(measured):
                return False
            self._ledger.accept(HostPart(load), ["cpu"], host_bytes)
            return True

    def host_bytes(self) -> int:
        """What models that fall asleep may take of the host's memory. Measured now."""
        measured = self._devices.measure()
        with self._changed:
            self._note_held(measured)
            return self._host_bytes(measured)

    def host_room_unused(self, load: Load) -> None:
        """It does not fall asleep."""
        with self._changed:
            self._ledger.release(HostPart(load))

    def fell_asleep(self, load: Load, held: AsleepBytes) -> None:
        with self._changed:
            load.asleep = held
            self._ledger.settle(load, held.device_bytes)
            if self._ledger.holding(HostPart(load)) is not None:
                self._ledger.settle(HostPart(load), held.host_bytes)

    def begin_waking(self, load: Load) -> None:
        """Gives the load what it had before it fell asleep: its turn has come, and there is
        room."""
        measured = self._devices.measure()
        with self._changed:
            self._ledger.settle(load, load.took_bytes)
            self._note_start(load, measured)
        load.spec = msgspec.structs.replace(load.spec, evict=[])

    def awake(self, load: Load) -> None:
        """The next one has its turn."""
        with self._changed:
            load.asleep, load.free_at_start = None, {}
            self._ledger.release(HostPart(load))
            self._leave(load)

    def leave(self, load: Load) -> None:
        """It gives its turn up."""
        with self._changed:
            self._leave(load)

    def engine_ended(self, load: Load) -> None:
        """What it held is free, and promised to it still."""
        with self._changed:
            load.pid, load.free_at_start = None, {}
            self._ledger.hold(load, 0)
            self._leave(load)

    def release(self, load: Load) -> None:
        """Release the load's memory: it was unloaded or refused."""
        with self._changed:
            load.asleep = None
            self._ledger.release(load)
            self._ledger.release(HostPart(load))
            self._leave(load)

    # Holds the lock already.

    def _leave(self, load: Load) -> None:
        if load in self._waiting:
            self._waiting.remove(load)
            self._changed.notify_all()

    def _note_start(self, load: Load, measured: list[DeviceInfo]) -> None:
        load.free_at_start = {device_name(one): one.free_memory_bytes for one in measured}
        limited = self._ledger.within_limits(measured)
        load.free_before = {device_name(one): one.free_memory_bytes for one in limited}

    def _note_held(self, measured: list[DeviceInfo]) -> None:
        self._ledger.share_host_memory(device_name(one) for one in measured if one.has_host_memory)
        free = {device_name(device): device.free_memory_bytes for device in measured}
        for holding in self._ledger.holdings():
            owner = holding.owner
            if isinstance(owner, HostPart):  # all of it, once it is there
                is_there = owner.load.asleep is not None
                self._ledger.hold(owner, holding.num_bytes if is_there else 0)
                continue
            assert isinstance(owner, Load)
            self._ledger.hold(owner, self._held_now(owner, holding, free))

    def _host_bytes(self, measured: list[DeviceInfo]) -> int:
        limited = self._ledger.within_limits(measured)
        host = next((one for one in limited if one.kind == "cpu"), None)
        if host is None:
            return 0
        kept_bytes = int(HOST_SHARE_KEPT * host.total_memory_bytes)
        taken_bytes = self._ledger.outstanding_bytes("cpu") + kept_bytes
        return max(0, host.free_memory_bytes - taken_bytes)

    def _held_now(self, load: Load, holding: Holding, free: dict[str, int]) -> int:
        """Bytes that it holds of its first device; an engine uses the same of each. A card
        allocates at once, so a running load holds as much as free memory has fallen since it
        began."""
        if load.pid is None:
            return 0
        device = holding.devices[0]
        if device == "cpu":
            # Its ranks are processes of its own, and hold alike.
            return load.spec.tensor_parallel * self._devices.held_bytes(load.pid)
        if load.free_at_start:
            return max(0, load.free_at_start.get(device, 0) - free.get(device, 0))
        return holding.num_bytes
