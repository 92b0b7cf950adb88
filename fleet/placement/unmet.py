"""Refuses a model for good that asks for devices which no host of the fleet has. Pure.

A host that drains, restarts or is silent is still the fleet's, with the devices last known of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fleet.catalogue import CatalogueEntry
from fleet.live.desired_state import KnownDevice
from fleet.live.measurements import DeviceKind
from fleet.live.snapshot import FleetSnapshot
from fleet.placement.decisions import Reject
from fleet.placement.devices.needs import Needs
from fleet.placement.returning import is_large_enough, unavailable_hosts
from inference.protocol.heartbeat import DeviceInfo

Devices = Sequence[DeviceInfo | KnownDevice]
SUGGESTION = (
    "Change device, min_devices, tensor_parallel or min_device_vram_mb of the model, or add a host "
    "with such devices."
)


def unmet_devices(
    entry: CatalogueEntry, snapshot: FleetSnapshot, model_id: str, only: Collection[str] = ()
) -> Reject | None:
    """``only``: the neurons that count, where not all do. ``None``: a host has such devices, or it
    is unknown which devices a host has."""
    needs = Needs(entry)
    hosts = {
        name: devices
        for name, devices in _hosts(snapshot).items()
        if name in (entry.pinned_on or (name,)) and name in (only or (name,))
    }
    if not hosts or not all(hosts.values()):
        return None
    if any(is_large_enough(needs, name, devices) for name, devices in hosts.items()):
        return None
    return Reject(
        code="exceeds_device",
        message=f"{entry.name} {_wanted(needs)}, and {_closest(needs, hosts)}",
        retry_after_s=None,
        model_id=model_id,
        suggestion=SUGGESTION,
    )


def _hosts(snapshot: FleetSnapshot) -> dict[str, Devices]:
    """The devices of each admitted host, by its name."""
    live: dict[str, Devices] = {
        neuron.name: neuron.devices for neuron in snapshot.neurons if neuron.is_admitted
    }
    return live | {host.name: host.devices for host in unavailable_hosts(snapshot)}


def _wanted(needs: Needs) -> str:
    if not needs.kinds:
        return "is set to processors (device) and to cards of a least size (min_device_vram_mb)"
    kind = "card" if needs.kinds == ("cuda",) else "device"
    num = needs.num_devices
    which = f"a {kind}" if num == 1 else f"{num} {kind}s on one neuron"
    least = max(_least_bytes(needs, kind) for kind in needs.kinds)
    size = f" of at least {least:,} bytes{' each' if num > 1 else ''}" if least else ""
    return f"needs {which}{size}"


def _closest(needs: Needs, hosts: Mapping[str, Devices]) -> str:
    fitting = {name: _num_fitting(needs, devices) for name, devices in hosts.items()}
    most = max(fitting.values())
    if not needs.kinds:
        return "no processor is a card"
    if not most:
        return f"{min(hosts)} has none" if len(hosts) == 1 else "no neuron has one"
    name = min(name for name, number in fitting.items() if number == most)
    return f"{name} has {most}" + ("; no neuron has more" if len(hosts) > 1 else "")


def _num_fitting(needs: Needs, devices: Devices) -> int:
    return max(
        (
            sum(
                device.kind == kind and device.total_memory_bytes >= _least_bytes(needs, kind)
                for device in devices
            )
            for kind in needs.kinds
        ),
        default=0,
    )


def _least_bytes(needs: Needs, kind: DeviceKind) -> int:
    """Returns the least bytes that each device must have; 0 where the need is unknown."""
    return max(needs.least_total_bytes, needs.least_device_bytes(kind) or 0)
