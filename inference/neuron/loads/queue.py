"""The queue of a neuron's loads, which also grants them memory.

    accept ─▶ (fetch) ─▶ enter … its turn ─▶ begin ─▶ started ─▶ loaded ─▶ release
       │                     │                │                    │
       └─ what it will take  └─ one load at   └─ what it may take  └─ engine_ended ─▶ begin_again
          is kept for it        a time           is in its spec        its memory is its own still

The lock guards the ledger, the queue and the claims of all loads; nothing is measured or called
back while it is held. A load enters the queue once its files are on the disk, so that its download
blocks no other. Called from the replicas' threads and the heartbeat's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

import msgspec

from inference.neuron.device_sampler import Devices
from inference.neuron.loads.load import (
    KINDS,
    Load,
    Room,
    choose_devices,
    expected_bytes,
    needed_bytes,
    spec_for_engine,
    used_by_device,
)
from inference.neuron.loads.memory_ledger import HOST, NO_LIMITS, Claim, MemoryLedger
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
        self._accepted: list[Load] = []
        self._waiting: list[Load] = []
        """The first one has its turn."""

    def devices(self) -> list[DeviceInfo]:
        """As last measured, within the operator's limits, less outstanding memory. Returns at
        once."""
        measured = self._devices.devices()
        with self._changed:
            self._note_held(measured)
            return self._ledger.without_promised(measured)

    def free_bytes(self) -> dict[str, int]:
        """As last measured, within the operator's limits, promised or not."""
        measured = self._devices.devices()
        with self._changed:
            self._note_held(measured)
            return _free_bytes(self._ledger.within_limits(measured))

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

    def kept_bytes(self, load: Load) -> int | None:
        """Bytes of ranks count for each device, of stages for all together. ``None``: no claim."""
        with self._changed:
            kept = [claim.num_bytes for claim in load.claims.values()]
        return (sum(kept) if load.spec.stages else kept[0]) if kept else None

    def accept(self, load: Load) -> None:
        """Raises ``LoadRefusedError`` for a device that this host lacks."""
        devices = choose_devices(load.spec, self.devices())
        with self._changed:
            self._accepted.append(load)
            self._claim(load, devices)
        self.expect(load, None)

    def expect(self, load: Load, file_bytes: int | None) -> None:
        with self._changed:
            for name, claim in load.claims.items():
                claim.num_bytes = expected_bytes(load.spec, name, file_bytes)

    def enter(
        self, load: Load, is_cancelled: Callable[[], bool], report: Callable[[str], None]
    ) -> bool:
        """The turn ends with ``loaded`` or ``release``. ``report`` gets the model that has it.
        ``False``: cancelled."""
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

    def leave(self, load: Load) -> None:
        with self._changed:
            if load in self._waiting:
                self._waiting.remove(load)
                self._changed.notify_all()

    def room(
        self,
        load: Load,
        gone: Collection[Load] = (),
        asleep: Sequence[tuple[Load, AsleepBytes]] = (),
    ) -> Room:
        """Measured now, as if ``gone`` had released their memory, and ``asleep`` all but so
        much."""
        measured = self._devices.measure()
        free = _free_bytes(measured)
        with self._changed:
            self._note_held(measured)
            leaving = [claim for one in gone for claim in one.claims.values()]
            keeping = {
                claim: held.on(name) for one, held in asleep for name, claim in one.claims.items()
            }
            limits = {
                name: self._ledger.limit_bytes(
                    load.claims.get(name),
                    name,
                    free[name],
                    needed_bytes(load.spec, name),
                    leaving,
                    keeping,
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
        measured = self._devices.measure()
        with self._changed:
            kept = {name: claim.num_bytes for name, claim in load.claims.items()}
            self._claim(load, room.devices)
            for name, claim in load.claims.items():
                expected = expected_bytes(load.spec, name, None)
                limit_bytes = room.limits[name] if load.spec.stages else room.limit_bytes
                kept_bytes = kept.get(name, max(kept.values()))
                claim.num_bytes = min(max(expected, kept_bytes), limit_bytes)
                claim.is_begun = True
            self._note_start(load, measured)
        # The evicted replicas have left: an engine that restarts evicts none.
        load.spec = msgspec.structs.replace(load.spec, evict=[])
        return spec_for_engine(load, room)

    def begin_again(self, load: Load) -> LoadSpec:
        """Restarts in the memory that stayed reserved."""
        measured = self._devices.measure()
        free = _free_bytes(measured)
        with self._changed:
            assert load.is_settled
            self._note_held(measured)
            self._note_start(load, measured)
            limits = {name: claim.num_bytes for name, claim in load.claims.items()}
            left = {
                name: self._ledger.limit_bytes(claim, name, free[name], claim.num_bytes)
                for name, claim in load.claims.items()
            }
        promised = {name: max(0, free[name] - left[name]) for name in limits}
        return spec_for_engine(load, Room(limits=limits, promised=promised))

    def started(self, load: Load, pid: int) -> None:
        with self._changed:
            load.pid = pid

    def loaded(self, load: Load, report: LoadReport) -> None:
        """Ends its turn."""
        with self._changed:
            load.is_settled = report.actual_bytes > 0
            self._settle(load, used_by_device(load, report))
            self.leave(load)

    def listens(self, load: Load, limit_bytes: int) -> None:
        """Ends the turn of a held stage that waits for its engine: two models' stages must not wait
        for each other."""
        with self._changed:
            load.claims[load.devices[0]].num_bytes = limit_bytes
            self.leave(load)

    def stage_took(self, load: Load, memory: DeviceMemory) -> None:
        with self._changed:
            self._settle(load, {load.devices[0]: memory.actual_bytes + memory.process_bytes})

    def keep_host_room(self, load: Load, host_bytes: int) -> bool:
        """``False``: no room, or there is a reservation already."""
        if host_bytes == 0:
            return True
        measured = self._devices.measure()
        with self._changed:
            self._note_held(measured)
            if load.host_claim is not None or host_bytes > self._host_bytes(measured):
                return False
            load.host_claim = self._ledger.claim([HOST])[HOST]
            load.host_claim.num_bytes = host_bytes
            return True

    def host_bytes(self) -> int:
        """For models that fall asleep. Measured now."""
        measured = self._devices.measure()
        with self._changed:
            self._note_held(measured)
            return self._host_bytes(measured)

    def host_room_unused(self, load: Load) -> None:
        with self._changed:
            if load.host_claim is not None:
                self._ledger.release([load.host_claim])
            load.host_claim = None

    def fell_asleep(self, load: Load, held: AsleepBytes) -> None:
        with self._changed:
            load.asleep = held
            for name, claim in load.claims.items():
                claim.num_bytes = held.on(name)
            if load.host_claim is not None:
                load.host_claim.num_bytes = held.host_bytes

    def begin_waking(self, load: Load) -> None:
        measured = self._devices.measure()
        with self._changed:
            self._settle(load, load.used)
            self._note_start(load, measured)
        load.spec = msgspec.structs.replace(load.spec, evict=[])

    def awake(self, load: Load) -> None:
        with self._changed:
            load.asleep, load.free_at_start = None, {}
            self.host_room_unused(load)
            self.leave(load)

    def engine_ended(self, load: Load) -> None:
        """The memory counts as free, but stays promised to the load."""
        with self._changed:
            load.pid, load.free_at_start = None, {}
            for claim in load.claims.values():
                claim.held_bytes = 0
            self.leave(load)

    def release(self, load: Load) -> None:
        with self._changed:
            load.asleep = None
            self._ledger.release(load.claims.values())
            load.claims = {}
            self._accepted = [one for one in self._accepted if one is not load]
            self.host_room_unused(load)
            self.leave(load)

    # The callers of these methods hold the lock.

    def _claim(self, load: Load, devices: Sequence[str]) -> None:
        load.devices = tuple(devices)
        load.claims = self._ledger.claim(devices, before=list(load.claims.values()))

    def _settle(self, load: Load, used: dict[str, int]) -> None:
        """The load takes what is measured now, and never more."""
        load.free_at_start, load.used = {}, used
        for name, claim in load.claims.items():
            claim.num_bytes = used.get(name, 0)

    def _note_start(self, load: Load, measured: list[DeviceInfo]) -> None:
        load.free_at_start = _free_bytes(measured)
        load.free_before = _free_bytes(self._ledger.within_limits(measured))

    def _note_held(self, measured: list[DeviceInfo]) -> None:
        self._ledger.share_host_memory(device_name(one) for one in measured if one.has_host_memory)
        free = _free_bytes(measured)
        for load in self._accepted:
            for claim in load.claims.values():
                claim.held_bytes = self._held_now(load, claim, free)
            if (host := load.host_claim) is not None:  # all of it, once the load is asleep
                host.held_bytes = 0 if load.asleep is None else host.num_bytes

    def _host_bytes(self, measured: list[DeviceInfo]) -> int:
        limited = self._ledger.within_limits(measured)
        host = next((one for one in limited if one.kind == "cpu"), None)
        if host is None:
            return 0
        free_bytes = host.free_memory_bytes - int(HOST_SHARE_KEPT * host.total_memory_bytes)
        return max(0, free_bytes - self._ledger.outstanding_bytes(HOST))

    def _held_now(self, load: Load, claim: Claim, free: dict[str, int]) -> int:
        """A card allocates at once: a running load holds as much as free memory has fallen since it
        began."""
        if load.pid is None:
            return 0
        if claim.device == HOST:
            return max(0, self._devices.held_bytes(load.pid))
        if load.free_at_start:
            return max(0, load.free_at_start.get(claim.device, 0) - free.get(claim.device, 0))
        return claim.num_bytes


def _free_bytes(devices: list[DeviceInfo]) -> dict[str, int]:
    return {device_name(one): one.free_memory_bytes for one in devices}
