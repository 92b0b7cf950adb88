"""Hosts that could hold a model but accept no loads now. A host that drains, restarts or is silent
belongs to the fleet with its last reported devices: a model that only it can hold is refused with a
time to retry, never permanently."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.entry import DeviceKind
from fleet.live.desired_state import Admission, DesiredState
from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.placement.capacity import stage_neurons
from fleet.placement.decisions import Reject
from fleet.placement.division import Devices, is_large_enough
from fleet.placement.needs import Needs

KIND_NAMES: dict[DeviceKind, str] = {"cuda": "card", "cpu": "processor"}
MIN_RETURN_S = 5.0
MAX_RETURN_S = 300.0
"""A host is expected back after as long again as it has been offline, within these bounds."""
DRAIN_WAIT_S = 600.0
"""Requests wait for a host that drains, restarts and is resumed, but not for a longer drain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnavailableHost:
    """``since_s``: in ``state``. ``is_awaited``: drained lately, so requests wait for it."""

    name: str
    devices: Devices
    state: str
    since_s: float | None
    is_awaited: bool = False

    @property
    def how_long(self) -> str:
        if self.since_s is None:
            return f"is {self.state}"
        return f"has been {self.state} for {self.since_s:.0f} s"

    @property
    def returns_in_s(self) -> float:
        return min(MAX_RETURN_S, max(MIN_RETURN_S, self.since_s or 0.0))


def unavailable_hosts(snapshot: FleetSnapshot) -> Iterator[UnavailableHost]:
    for neuron in snapshot.neurons:
        if neuron.is_admitted and not neuron.may_load:
            desired = snapshot.desired_states.of(neuron.name)
            yield UnavailableHost(
                name=neuron.name,
                devices=neuron.devices,
                state=_state(neuron),
                since_s=None if desired.host is None else desired.host.draining_s,
                is_awaited=_is_awaited(desired),
            )
    for name, desired in sorted(snapshot.desired_states.by_neuron.items()):
        is_away = snapshot.neuron(name) is None and desired.admission is Admission.ADMITTED
        if is_away and desired.host is not None:
            yield UnavailableHost(
                name=name,
                devices=desired.host.devices,
                state="away",
                since_s=desired.host.away_s,
                is_awaited=_is_awaited(desired),
            )


def _is_awaited(desired: DesiredState) -> bool:
    drained_s = None if desired.host is None else desired.host.draining_s
    return desired.drain and (drained_s or 0.0) < DRAIN_WAIT_S


def returning_hosts(
    entry: CatalogueEntry, snapshot: FleetSnapshot, *, excluded: Collection[str] = ()
) -> list[UnavailableHost]:
    """The first to return first. ``excluded``: hosts that have refused it permanently."""
    needs = Needs(entry)
    found = [
        host
        for host in unavailable_hosts(snapshot)
        if host.name not in excluded
        and host.name in (entry.pinned_on or (host.name,))
        and is_large_enough(needs, host.name, host.devices)
    ]
    return sorted(found, key=lambda host: (host.returns_in_s, host.name))


def awaited_host(
    returning: Sequence[UnavailableHost], replicas: Sequence[ReplicaView], snapshot: FleetSnapshot
) -> UnavailableHost | None:
    """A draining host with a replica or a stage of the model, else one of ``returning``."""
    holders = {name for one in replicas for name in (one.neuron, *stage_neurons(one))}
    holding = (host for host in unavailable_hosts(snapshot) if host.name in holders)
    return next((host for host in (*holding, *returning) if host.is_awaited), None)


def why_unmet(needs: Needs, hosts: Mapping[str, Devices]) -> str:
    if any(is_large_enough(needs, name, devices) for name, devices in hosts.items()):
        return ""
    return f"needs {_wanted(needs)}, and {_closest(needs, hosts)}"


def _wanted(needs: Needs) -> str:
    number, pinned_on = needs.num_devices, needs.entry.pinned_on
    names = " or a ".join(KIND_NAMES[kind] for kind in needs.kinds)
    what = f"a {names or 'processor'}" if number == 1 else f"{number} cards of one host"
    least = [max(needs.least_total_bytes, needs.least_device_bytes(k) or 0) for k in needs.kinds]
    size_bytes = max(least, default=needs.least_total_bytes)
    size = f" of {_gib(size_bytes)} or more" if size_bytes else ""
    return f"{what}{size}" + (f" on {', '.join(pinned_on)}, by its pinned_on" if pinned_on else "")


def _closest(needs: Needs, hosts: Mapping[str, Devices]) -> str:
    found = [
        (sorted(((one.total_memory_bytes, one.name) for one in of_kind), reverse=True), name)
        for name, devices in hosts.items()
        for kind in needs.kinds
        if (of_kind := [one for one in devices if one.kind == kind])
    ]
    if not found:
        return "no host has one"
    number = needs.num_devices
    enough = [(sizes[number - 1], name) for sizes, name in found if len(sizes) >= number]
    if not enough:
        most, name = max((len(sizes), name) for sizes, name in found)
        return f"no host has so many: {name} has {most}"
    (num_bytes, device), name = max(enough)
    which = "the largest" if number == 1 else f"the smaller of the largest {number} of one host"
    return f"{which} is {device or 'a device'} of {name} with {_gib(num_bytes)}"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 1024**3:.1f} GiB"


def recovering(entry: CatalogueEntry, hosts: Sequence[UnavailableHost]) -> Reject:
    first, others = hosts[0], hosts[1:]
    also = f" ({len(others)} other hosts are as large and take no loads either)" if others else ""
    return Reject(
        code="model_recovering",
        message=f"{entry.name} can only be loaded on {first.name}, which {first.how_long}{also}: "
        "ask again when it is back",
        retry_after_s=first.returns_in_s,
    )


def _state(neuron: NeuronView) -> str:
    if not neuron.speaks_our_protocol:
        return "of another version"
    if neuron.is_leaving:
        return "stopping"
    return "draining" if neuron.is_draining else "not ready"
