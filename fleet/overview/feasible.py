"""Finds models that no host of the fleet could ever run, even if empty. Pure.

Offline hosts count: they belong to the fleet. A model with an unknown need could run on any host
with the required kind of device.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.catalogue import CatalogueEntry
from fleet.live.desired_state import KnownDevice
from fleet.overview.lines import NeuronLine
from fleet.placement.devices.needs import Needs
from fleet.placement.returning import Devices, is_large_enough, why_unmet

REFUSED = "refused"
ONLINE = "online"


def why_no_host(entry: CatalogueEntry, neurons: Sequence[NeuronLine]) -> str:
    """The reason why no host can run the model, in words; empty where one can, or where there is no
    host."""
    allowed = [one for one in _allowed(entry, neurons) if one.status != REFUSED]
    why = why_unmet(Needs(entry), {one.name: _devices(one) for one in allowed})
    return f"it {why}" if neurons and why else ""


def why_not_now(entry: CatalogueEntry, neurons: Sequence[NeuronLine]) -> str:
    """The hosts that could run the model, where none of them accepts a load now; empty where one
    does, or where no host ever could."""
    needs = Needs(entry)
    able = [
        neuron
        for neuron in _allowed(entry, neurons)
        if is_large_enough(needs, neuron.name, _devices(neuron))
    ]
    if any(neuron.status == ONLINE for neuron in able):
        return ""
    return ", ".join(
        f"{neuron.name} is {neuron.status}" for neuron in able if neuron.status != REFUSED
    )


def _allowed(entry: CatalogueEntry, neurons: Sequence[NeuronLine]) -> list[NeuronLine]:
    return [neuron for neuron in neurons if neuron.name in (entry.pinned_on or (neuron.name,))]


def _devices(neuron: NeuronLine) -> Devices:
    return [
        KnownDevice(
            kind="cuda" if line.id.startswith("cuda:") else "cpu",
            total_memory_bytes=line.total_memory_bytes,
            name=line.name,
        )
        for line in neuron.devices
    ]
