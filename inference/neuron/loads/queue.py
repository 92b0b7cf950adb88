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
from inference.neuron.loads.load import (
    KINDS,
    HostPart,
    Load,
    Room,
    StagePart,
    choose_devices,
    expected_bytes,
    needed_bytes,
    spec_for_engine,
    used_by_device,
)
from inference.neuron.loads.memory_ledger import NO_LIMITS, Holding, MemoryLedger
from inference.protocol.heartbeat import DeviceInfo, device_name
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import AsleepBytes, DeviceMemory, LoadReport
from inference.settings.neuron import MEMORY_LIMIT, MemoryLimits

POLL_S = 1.0
"""How often a waiting load reports what it waits for. Its turn and its cancel wake it at once."""
HOST_SHARE_KEPT = 0.1
"""The share of the host's memory that weights of models that sleep leave to everybody else."""


class LoadQueue:
    def __init__(self, devices: Devices, limits: MemoryLimits = NO_LIMITS) -> None:
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

    def kept_bytes(self, load: Load) -> int | None:
        """Bytes promised to all its claims together; ``None``: it has none."""
        with self._changed:
            found = [self._ledger.holding(owner) for owner in load.claimed()]
        kept = [one.num_bytes for one in found if one is not None]
        return sum(kept) if kept else None

    def accept(self, load: Load) -> None:
        """Keeps the load's expected memory for it from now on, as far as that is known. Raises
        ``LoadRefusedError`` for a device that this host lacks."""
        devices = choose_devices(load.spec, self.devices())
        with self._changed:
            load.claim(devices)
            for owner, names in load.claimed().items():
                self._ledger.accept(owner, names, expected_bytes(load.spec, names[0], None))

    def expect(self, load: Load, file_bytes: int) -> None:
        with self._changed:
            for owner, names in load.claimed().items():
                self._ledger.settle(owner, expected_bytes(load.spec, names[0], file_bytes))

    def enter(
        self, load: Load, is_cancelled: Callable[[], bool], report: Callable[[str], None]
    ) -> bool:
        """Waits for the turn, which ends with ``loaded`` or ``release``. ``report`` is called with
        the model that has it. ``False``: cancelled."""
        with self._changed:
            self._waiting.append(load)
        while not is_cancelled():
            with self._changed:
                first = self._waiting[0]
                if first is load:
                    return True
            report(first.spec.model)
            with self._changed:
                self._changed.wait_for(lambda: self._waiting[0] is load or is_cancelled(), POLL_S)
        self.leave(load)
        return False

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def room(
        self,
        load: Load,
        gone: Collection[Load] = (),
        asleep: Sequence[tuple[Load, AsleepBytes]] = (),
    ) -> Room:
        """Measured now, and as if ``gone`` had given theirs back, and ``asleep`` all but so much.
        On the devices that the spec names, else on the freest; where it sleeps, where it is."""
        measured = self._devices.measure()
        with self._changed:
            self._note_held(measured)
            free = {device_name(device): device.free_memory_bytes for device in measured}
            limits = {
                name: self._ledger.limit_bytes(
                    load.owner_on(name),
                    name,
                    free[name],
                    needed_bytes(load.spec, name),
                    [one.owner_on(name) for one in gone],
                    [(one.owner_on(name), held.on(name)) for one, held in asleep],
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
            limits={name: limits[name] for name in names},
            promised={name: max(0, free[name] - limits[name]) for name in names},
        )

    def begin(self, load: Load, room: Room) -> LoadSpec:
        """Begins the load whose turn has come. Returns the spec for its engine."""
        measured = self._devices.measure()
        with self._changed:
            load.claim(room.devices)
            for owner, names in load.claimed().items():
                kept = self._ledger.holding(owner)
                assert kept is not None
                expected = expected_bytes(load.spec, names[0], None)
                limit_bytes = min(room.limits[name] for name in names)
                num_bytes = min(max(expected, kept.num_bytes), limit_bytes)
                self._ledger.begin(owner, names, num_bytes)
            self._note_start(load, measured)
        # The evicted replicas have left: an engine that restarts evicts none.
        load.spec = msgspec.structs.replace(load.spec, evict=[])
        return spec_for_engine(load, room)

    def begin_again(self, load: Load) -> LoadSpec:
        """Begin the load again after its engine died. Its memory stays reserved for the next
        engine."""
        measured = self._devices.measure()
        with self._changed:
            assert load.is_settled
            self._note_held(measured)
            self._note_start(load, measured)
            free = {device_name(device): device.free_memory_bytes for device in measured}
            limits, promised = {}, {}
            for name in load.devices:
                owner = load.owner_on(name)
                holding = self._ledger.holding(owner)
                assert holding is not None
                limits[name] = holding.num_bytes
                left = self._ledger.limit_bytes(owner, name, free[name], holding.num_bytes)
                promised[name] = max(0, free[name] - left)
        return spec_for_engine(load, Room(limits=limits, promised=promised))

    def started(self, load: Load, pid: int) -> None:
        with self._changed:
            load.pid = pid

    def loaded(self, load: Load, report: LoadReport) -> None:
        """Ends its turn: the next load continues."""
        with self._changed:
            load.free_at_start = {}
            load.is_settled = report.actual_bytes > 0
            load.used = used_by_device(load, report)
            for owner, names in load.claimed().items():
                self._ledger.settle(owner, load.used.get(names[0], 0))
            self._leave(load)

    def listens(self, load: Load, limit_bytes: int) -> None:
        """A held stage waits for its engine without the turn: two models' must not wait for each
        other. All that it may take is promised to it, until it is known what it takes."""
        with self._changed:
            self._ledger.settle(load, limit_bytes)
            self._leave(load)

    def stage_took(self, load: Load, memory: DeviceMemory) -> None:
        """Records the memory of a held stage, now that it has its keys and values."""
        with self._changed:
            load.free_at_start = {}
            load.used = {load.devices[0]: memory.actual_bytes + memory.process_bytes}
            self._ledger.settle(load, load.used_bytes)

    def keep_host_room(self, load: Load, host_bytes: int) -> bool:
        """Reserves room on the host for the weights of a load that is about to sleep, until
        ``host_room_unused`` or until it is awake or gone. Returns ``False`` where the host has no
        room, or where the load has room reserved already."""
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
        """Bytes of the host's memory that models may take to fall asleep. Measured now."""
        measured = self._devices.measure()
        with self._changed:
            self._note_held(measured)
            return self._host_bytes(measured)

    def host_room_unused(self, load: Load) -> None:
        with self._changed:
            self._ledger.release(HostPart(load))

    def fell_asleep(self, load: Load, held: AsleepBytes) -> None:
        with self._changed:
            load.asleep = held
            for owner, names in load.claimed().items():
                self._ledger.settle(owner, held.on(names[0]))
            if self._ledger.holding(HostPart(load)) is not None:
                self._ledger.settle(HostPart(load), held.host_bytes)

    def begin_waking(self, load: Load) -> None:
        """Gives the load what it had before it fell asleep: its turn has come, and there is
        room."""
        measured = self._devices.measure()
        with self._changed:
            for owner, names in load.claimed().items():
                self._ledger.settle(owner, load.used.get(names[0], 0))
            self._note_start(load, measured)
        load.spec = msgspec.structs.replace(load.spec, evict=[])

    def awake(self, load: Load) -> None:
        with self._changed:
            load.asleep, load.free_at_start = None, {}
            self._ledger.release(HostPart(load))
            self._leave(load)

    def leave(self, load: Load) -> None:
        with self._changed:
            self._leave(load)

    def engine_ended(self, load: Load) -> None:
        """Counts its memory as free, and keeps it promised to the load."""
        with self._changed:
            load.pid, load.free_at_start = None, {}
            for owner in load.claimed():
                self._ledger.hold(owner, 0)
            self._leave(load)

    def release(self, load: Load) -> None:
        with self._changed:
            load.asleep = None
            for owner in load.claimed():
                self._ledger.release(owner)
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
                self._ledger.hold(owner, 0 if owner.load.asleep is None else holding.num_bytes)
                continue
            load = owner.load if isinstance(owner, StagePart) else owner
            assert isinstance(load, Load)
            self._ledger.hold(owner, self._held_now(load, holding, free))

    def _host_bytes(self, measured: list[DeviceInfo]) -> int:
        limited = self._ledger.within_limits(measured)
        host = next((one for one in limited if one.kind == "cpu"), None)
        if host is None:
            return 0
        free_bytes = host.free_memory_bytes - int(HOST_SHARE_KEPT * host.total_memory_bytes)
        return max(0, free_bytes - self._ledger.outstanding_bytes("cpu"))

    def _held_now(self, load: Load, holding: Holding, free: dict[str, int]) -> int:
        """Bytes that it holds of its first device; an engine uses the same of each. A card
        allocates at once, so a running load holds as much as free memory has fallen since it
        began."""
        if load.pid is None:
            return 0
        device = holding.devices[0]
        if device == "cpu":
            return self._devices.held_bytes(load.pid)
        if load.free_at_start:
            return max(0, load.free_at_start.get(device, 0) - free.get(device, 0))
        return holding.num_bytes
