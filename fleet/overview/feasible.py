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
    sizes = [
        (device.total_memory_bytes, neuron.name, device.name)
        for neuron in allowed
        for kind in needs.kinds
        for device in _of_kind(neuron, kind)
    ]
    if not sizes:
        return "no host has one"
    num_bytes, neuron_name, device_name = max(sizes)
    return f"the largest is {device_name} of {neuron_name} with {_gib(num_bytes)}"


def _least_bytes(needs: Needs, neuron: str, kind: DeviceKind) -> int:
    return max(needs.least_total_bytes, needs.device_bytes(neuron, kind) or 0)


def _of_kind(neuron: NeuronLine, kind: DeviceKind) -> list[DeviceLine]:
    return [device for device in neuron.devices if device.id.startswith(f"{kind}:")]


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 1024**3:.1f} GiB"
