"""A device as placement sees it: its replicas, the evictable ones, the order of devices. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from fleet.live.snapshot import NeuronView, ReplicaView
from inference.protocol.heartbeat import DeviceInfo


@dataclass(slots=True)
class EvictionCandidate:
    """A replica that may leave its devices, now or later. ``freed_bytes`` is on each of them;
    ``in_s`` is how soon it may leave, 0: now; ``loss`` is how often it may be expected to be asked
    for again, in times a second. Not frozen: a snapshot has a thousand."""

    replica: ReplicaView
    priority: int
    freed_bytes: int
    in_s: float
    is_idle: bool
    goes_now: bool
    """Idle, and its time slice is over: it may be evicted."""
    loss: float


@dataclass(slots=True)
class DeviceCapacity:
    """``evictables`` are those that may go, the least valuable first. ``claims`` are bytes that are
    promised to a model for its time slice. Not to be changed."""

    neuron: NeuronView
    info: DeviceInfo
    name: str
    evictables: Sequence[EvictionCandidate]
    claims: Sequence[tuple[str, int]]
    evictable_bytes: int
    """What all evictables that may go now hold."""
    movable_bytes: int
    """What all evictables hold."""
    least_loss: tuple[int, float]
    """No eviction here loses less: priority, then loss."""
    soonest: tuple[float, int, float] | None
    """No time slice here begins sooner, or as soon and loses less: seconds, priority, loss.
    ``None``: nothing here may ever go."""

    def free_bytes(self, model: str) -> int:
        """Free bytes for that model: without promises to others."""
        free = self.info.free_memory_bytes
        for claimant, size in self.claims:
            if claimant != model:
                free -= size
        return free


@dataclass(slots=True)
class NeuronCapacity:
    """A neuron's devices of one kind, and what each has free, promises aside. Not to be changed."""

    name: str
    devices: list[DeviceCapacity]
    free: list[int] = field(default_factory=list)
    """Bytes of each device, the least first."""
    clearable: list[int] = field(default_factory=list)
    """The same, with what may go now."""
    movable: list[int] = field(default_factory=list)
    """The same, with all that may go."""

    def add(self, device: DeviceCapacity) -> None:
        self.devices.append(device)
        free = device.info.free_memory_bytes
        insort(self.free, free)
        insort(self.clearable, free + device.evictable_bytes)
        insort(self.movable, free + device.movable_bytes)


def has_as_much(sizes: Sequence[int], num_devices: int, each_bytes: int) -> bool:
    """Whether so many of ``sizes``, the least first, are as large as that."""
    return len(sizes) >= num_devices and sizes[-num_devices] >= each_bytes


class ByFree:
    """Devices of one kind by how much is free on them, the fullest first."""

    __slots__ = ("_free_bytes", "_sorted", "claimed")

    def __init__(self, devices: Sequence[DeviceCapacity]) -> None:
        self._sorted = sorted((d for d in devices if not d.claims), key=_fullest)
        self._free_bytes = [device.info.free_memory_bytes for device in self._sorted]
        self.claimed = [device for device in devices if device.claims]
        """Devices with a promised part: their free memory depends on the model."""

    def with_at_least(self, num_bytes: float) -> Iterator[DeviceCapacity]:
        """Devices without a promised part that have at least so much free; the fullest first."""
        return islice(self._sorted, bisect_left(self._free_bytes, num_bytes), None)


def _fullest(device: DeviceCapacity) -> tuple[int, str, str]:
    return (device.info.free_memory_bytes, device.neuron.name, device.name)
