"""Which models no host of the fleet could ever run, whatever else is loaded there. Pure.

Hosts that are away count: they belong to the fleet. A model with an unknown need could run on any
host with the kind of device that it asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fleet.catalogue import CatalogueEntry
from fleet.live.desired_state import KnownDevice
from fleet.live.measurements import DeviceKind
from fleet.overview.lines import DeviceLine, NeuronLine
from fleet.placement.devices.needs import Needs
from fleet.placement.returning import is_large_enough

REFUSED = "refused"
ONLINE = "online"
KIND_NAMES: dict[DeviceKind, str] = {"cuda": "card", "cpu": "processor"}


def why_no_host(entry: CatalogueEntry, neurons: Sequence[NeuronLine]) -> str:
    """Why no host can run the model, in words; empty where one can, or where there is no host."""
    needs = Needs(entry)
    allowed = [
        neuron
        for neuron in neurons
        if neuron.status != REFUSED and neuron.name in (entry.pinned_on or (neuron.name,))
    ]
    if not neurons or any(_could_hold(needs, neuron) for neuron in allowed):
        return ""
    where = f" on {', '.join(entry.pinned_on)}, by its pinned_on" if entry.pinned_on else ""
    return f"it needs {_wanted(needs)}{where}, and {_largest(needs, allowed)}"


def why_not_now(entry: CatalogueEntry, neurons: Sequence[NeuronLine]) -> str:
    """The hosts that could run the model, where none of them takes a load now; empty where one
    does, or where no host ever could."""
    needs = Needs(entry)
    able = [
        neuron
        for neuron in neurons
        if neuron.name in (entry.pinned_on or (neuron.name,)) and _could_hold(needs, neuron)
    ]
    if any(neuron.status == ONLINE for neuron in able):
        return ""
    return ", ".join(
        f"{neuron.name} is {neuron.status}" for neuron in able if neuron.status != REFUSED
    )


def _could_hold(needs: Needs, neuron: NeuronLine) -> bool:
    devices = [
        KnownDevice(kind=kind, total_memory_bytes=device.total_memory_bytes)
        for kind in KIND_NAMES
        for device in _of_kind(neuron, kind)
    ]
    return is_large_enough(needs, neuron.name, devices)


def _wanted(needs: Needs) -> str:
    names = " or a ".join(KIND_NAMES[kind] for kind in needs.kinds)
    what = f"a {names}" if needs.num_devices == 1 else f"{needs.num_devices} cards of one host"
    least = max((_least_bytes(needs, "", kind) for kind in needs.kinds), default=0)
    return f"{what} of {_gib(least)} or more" if least else what


def _largest(needs: Needs, allowed: Iterable[NeuronLine]) -> str:
    """What the host that comes closest has of as many devices as are needed."""
    hosts = [
        (sorted((one.total_memory_bytes, one.name) for one in devices)[::-1], neuron.name)
        for neuron in allowed
        for kind in needs.kinds
        if (devices := _of_kind(neuron, kind))
    ]
    if not hosts:
        return "no host has one"
    number = needs.num_devices
    enough = [(sizes[number - 1], name) for sizes, name in hosts if len(sizes) >= number]
    if not enough:
        most, name = max((len(sizes), name) for sizes, name in hosts)
        return f"no host has so many: {name} has {most}"
    (num_bytes, device_name), neuron_name = max(enough)
    which = "the largest" if number == 1 else f"the smaller of the largest {number} of one host"
    return f"{which} is {device_name} of {neuron_name} with {_gib(num_bytes)}"


def _least_bytes(needs: Needs, neuron: str, kind: DeviceKind) -> int:
    return max(needs.least_total_bytes, needs.device_bytes(neuron, kind) or 0)


def _of_kind(neuron: NeuronLine, kind: DeviceKind) -> list[DeviceLine]:
    return [device for device in neuron.devices if device.id.startswith(f"{kind}:")]


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 1024**3:.1f} GiB"
