"""The devices that a search looks at: what the model takes on each, and which of them cannot
matter. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fleet.placement.stages.devices import StageDevice
from fleet.placement.stages.layer_memory import LayerMemory
from fleet.placement.stages.step_times import StepTimes


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A device that has room for layers of the model."""

    device: StageDevice
    layer_s: float
    head_s: float
    """What it takes more as the first stage."""
    most: int
    """Layers that fit."""
    most_as_first: int


def candidates_of(
    memory: LayerMemory, times: StepTimes, devices: Collection[StageDevice]
) -> list[Candidate]:
    """The fastest first; like ones by name."""
    found = (_candidate(memory, times, one) for one in devices)
    return sorted((one for one in found if one.most), key=_fastest)


def _candidate(memory: LayerMemory, times: StepTimes, device: StageDevice) -> Candidate:
    layer_s, head_s = times.plan_s(device)
    return Candidate(
        device=device,
        layer_s=layer_s,
        head_s=head_s,
        most=memory.most_layers(device, is_first=False),
        most_as_first=memory.most_layers(device, is_first=True),
    )


def _fastest(one: Candidate) -> tuple[float, int, int, str, str]:
    device = one.device
    return (one.layer_s, -one.most, -one.most_as_first, device.neuron, device.name)


def used_first(candidates: Sequence[Candidate], network_s: Mapping[str, float]) -> dict[str, str]:
    """Maps a neuron to the one with like devices that a search tries before it. That one has at
    least as much room on each device, so a plan that uses the later one in its place is no
    faster."""
    by_neuron: dict[str, list[int]] = {}
    for index, one in enumerate(candidates):
        by_neuron.setdefault(one.device.neuron, []).append(index)
    alike: dict[tuple[object, ...], list[str]] = {}
    for neuron, indexes in by_neuron.items():  # in the order of their fastest devices
        own = [candidates[index] for index in indexes]
        kind = (network_s[neuron], *((one.layer_s, one.head_s) for one in own))
        alike.setdefault(kind, []).append(neuron)
    return {
        then: first
        for neurons in alike.values()
        for first, then in pairwise(neurons)
        if all(
            index < other and _has_as_much(candidates[index], candidates[other])
            for index, other in zip(by_neuron[first], by_neuron[then], strict=True)
        )
    }


def _has_as_much(one: Candidate, other: Candidate) -> bool:
    return one.most >= other.most and one.most_as_first >= other.most_as_first
