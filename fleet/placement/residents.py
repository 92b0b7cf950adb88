"""What is on each device, and what of it may go, when, and at what loss.

    FleetSnapshot, Catalogue ──Ground──▶ DeviceGround* ▷ Resident*     least valuable first

Compiled once for a snapshot and looked through by every decision on it. Pure.
"""

from __future__ import annotations

from collections import Counter
from copy import copy
from dataclasses import dataclass

from fleet.measurements import DeviceKind
from fleet.placement.decisions import Catalogue
from fleet.snapshot import FleetSnapshot, NeuronView, ReplicaView
from inference.protocol.heartbeat import DeviceInfo, ReplicaStatus

IDLE_TURN_S = 5.0
"""How long a replica stays once it is ready, even if nobody uses it: the requests that it was
loaded for are on their way. Two models that displace each other each stay so long at least."""
QUIET_S = 1.5
"""How long it must have been idle: a request may be on its way that no heartbeat tells of yet."""
MIN_TURN_S = 30.0
MAX_TURN_S = 300.0
TURN_LOADS = 2.0
"""A replica in use keeps its place for twice the time that its load took, within these bounds, so
that a card whose models take turns computes for at least two thirds of the time."""

UNKNOWN_MODEL_PRIORITY = -1
"""Of a model that the catalogue does not offer (any more): nobody can ask for it."""

HELD = (ReplicaStatus.READY, ReplicaStatus.LOADING, ReplicaStatus.RECOVERING)


@dataclass(frozen=True, slots=True)
class Resident:
    """A replica that may leave its devices, now or in a while. ``freed_bytes`` is on each of them;
    ``in_s`` is how soon it may go, 0 for now; ``loss`` is how often it may be expected to be asked
    for again, in times a second."""

    replica: ReplicaView
    priority: int
    freed_bytes: int
    in_s: float
    is_idle: bool
    loss: float

    @property
    def goes_now(self) -> bool:
        """Idle and out of its turn: it may be evicted."""
        return self.is_idle and self.in_s == 0


@dataclass(frozen=True, slots=True)
class DeviceGround:
    """``residents`` are those that may go, the least valuable first. ``claims`` are bytes that a
    model whose turn it is was promised."""

    neuron: NeuronView
    info: DeviceInfo
    name: str
    residents: tuple[Resident, ...]
    claims: tuple[tuple[str, int], ...]
    evictable_bytes: int
    """Of all residents that may go now."""
    movable_bytes: int
    """Of all residents."""

    def free_bytes(self, model: str) -> int:
        """Less what other models were promised."""
        claimed = sum(size for claimant, size in self.claims if claimant != model)
        return self.info.free_memory_bytes - claimed


class Ground:
    """Of one snapshot."""

    def __init__(self, snapshot: FleetSnapshot, catalogue: Catalogue | None) -> None:
        """Without a catalogue nobody knows what replicas are worth, and none may go."""
        self._catalogue = catalogue
        self._num_held = Counter(
            replica.model for replica in snapshot.replicas() if replica.status in HELD
        )
        claims: dict[tuple[str, str], list[tuple[str, int]]] = {}
        for turn in snapshot.turns:
            if self._num_held[turn.model]:
                continue  # it has what it was promised
            for name in turn.devices:
                claims.setdefault((turn.neuron, name), []).append((turn.model, turn.device_bytes))
        self.by_kind: dict[DeviceKind, dict[str, list[DeviceGround]]] = {"cuda": {}, "cpu": {}}
        """Of each neuron that may load."""
        for neuron in snapshot.neurons:
            if neuron.may_load:
                self._add(neuron, claims)

    def only(self, neuron: str) -> Ground:
        """Of that neuron; what models are worth follows from the whole fleet."""
        alone = copy(self)
        alone.by_kind = {
            kind: {name: devices for name, devices in by_name.items() if name == neuron}
            for kind, by_name in self.by_kind.items()
        }
        return alone

    def _add(
        self, neuron: NeuronView, claims: dict[tuple[str, str], list[tuple[str, int]]]
    ) -> None:
        residents: dict[str, list[Resident]] = {}
        for replica in neuron.replicas:
            if (resident := self._resident(replica)) is not None:
                for name in devices_of(replica, neuron):
                    residents.setdefault(name, []).append(resident)
        for info in neuron.devices:
            name = device_name(info)
            going = sorted(residents.get(name, ()), key=_value)
            ground = DeviceGround(
                neuron=neuron,
                info=info,
                name=name,
                residents=tuple(going),
                claims=tuple(claims.get((neuron.name, name), ())),
                evictable_bytes=sum(r.freed_bytes for r in going if r.goes_now),
                movable_bytes=sum(r.freed_bytes for r in going),
            )
            self.by_kind[info.kind].setdefault(neuron.name, []).append(ground)

    def _resident(self, replica: ReplicaView) -> Resident | None:
        """``None``: it may not go, or holds nothing."""
        if self._catalogue is None or replica.status is ReplicaStatus.FAILED:
            return None
        entry = self._catalogue.get(replica.model)
        if entry is not None and self._is_kept(replica, entry.effective_min_replicas):
            return None
        idle_s = idle_age_s(replica)
        return Resident(
            replica=replica,
            priority=UNKNOWN_MODEL_PRIORITY if entry is None else entry.effective_priority,
            freed_bytes=freed_bytes(replica),
            in_s=stays_s(replica),
            is_idle=replica.status is ReplicaStatus.READY and idle_s is not None,
            loss=1.0 / (1.0 + (idle_s or 0.0)),
        )

    def _is_kept(self, replica: ReplicaView, least_replicas: int) -> bool:
        """A model keeps as many replicas as it should have at least."""
        return replica.status in HELD and self._num_held[replica.model] <= least_replicas


_last: tuple[FleetSnapshot, Catalogue | None, Ground] | None = None


def ground_of(snapshot: FleetSnapshot, catalogue: Catalogue | None) -> Ground:
    """The last one is kept: many decisions are made on one snapshot."""
    global _last
    last = _last
    if last is not None and last[0] is snapshot and last[1] is catalogue:
        return last[2]
    ground = Ground(snapshot, catalogue)
    _last = (snapshot, catalogue, ground)
    return ground


def device_name(info: DeviceInfo) -> str:
    """As in a load spec."""
    return "cpu" if info.kind == "cpu" else f"cuda:{info.index}"


def devices_of(replica: ReplicaView, neuron: NeuronView) -> tuple[str, ...]:
    """Where it is; a neuron that does not say has it on its first device of the better kind."""
    if replica.devices:
        return replica.devices
    names = sorted(device_name(info) for info in neuron.devices)
    cards = [name for name in names if name != "cpu"]
    return tuple((cards or names)[:1])


def freed_bytes(replica: ReplicaView) -> int:
    """On each of its devices, once it is gone; 0 where nobody knows."""
    total = replica.memory_bytes
    if total is None:
        report = replica.report
        total = report.actual_bytes + report.process_bytes if report else 0
    return total // max(1, len(replica.devices))


def idle_age_s(replica: ReplicaView) -> float | None:
    """How long nobody has used it; ``None`` while somebody does."""
    if not replica.is_idle:
        return None
    used_s = replica.last_used_age_s
    return replica.status_age_s if used_s is None else min(used_s, replica.status_age_s)


def turn_s(replica: ReplicaView) -> float:
    """How long it keeps its place while it is in use and others wait for it."""
    load_s = replica.report.load_seconds if replica.report else 0.0
    return min(MAX_TURN_S, max(MIN_TURN_S, TURN_LOADS * load_s))


def stays_s(replica: ReplicaView) -> float:
    """How long it may not be displaced yet."""
    if replica.status is ReplicaStatus.DRAINING:
        return 0.0
    if replica.status is not ReplicaStatus.READY:
        return (replica.eta_s or 0.0) + turn_s(replica)
    idle_s = idle_age_s(replica)
    if idle_s is None:
        return max(0.0, turn_s(replica) - replica.status_age_s)
    return max(0.0, IDLE_TURN_S - replica.status_age_s, QUIET_S - idle_s)


def _value(resident: Resident) -> tuple[int, bool, float, str]:
    return (resident.priority, not resident.is_idle, resident.loss, resident.replica.model)
