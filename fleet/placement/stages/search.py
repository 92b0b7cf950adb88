"""Fills devices with a model's layers. Pure.

    fastest first      cuda:0 ───────── cuda:1 ──────────── cpu
                       filled           filled              the rest

The fastest device also has the outer tensors. No other division over the same devices reads its
weights faster.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fleet.placement.stages.devices import StageDevice
from fleet.placement.stages.layer_memory import LayerMemory
from fleet.placement.stages.step_times import StepTimes


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    device: StageDevice
    layer_s: float
    head_s: float
    """Additional seconds as the first stage."""
    most: int
    most_as_first: int


def candidates_of(
    memory: LayerMemory, times: StepTimes, devices: Collection[StageDevice]
) -> list[Candidate]:
    """The fastest first; like ones by name."""
    found = (_candidate(memory, times, one) for one in devices)
    return sorted((one for one in found if one.most), key=_fastest)


def _candidate(memory: LayerMemory, times: StepTimes, device: StageDevice) -> Candidate:
    return Candidate(
        device=device,
        layer_s=times.layer_s(device, 1),
        head_s=times.head_s(device, 1),
        most=memory.most_layers(device, is_first=False),
        most_as_first=memory.most_layers(device, is_first=True),
    )


def _fastest(one: Candidate) -> tuple[float, int, int, str, str]:
    device = one.device
    return (one.layer_s, -one.most, -one.most_as_first, device.neuron, device.name)


@dataclass(frozen=True, slots=True)
class Share:
    device: StageDevice
    num_layers: int


@dataclass(frozen=True, slots=True)
class Found:
    shares: tuple[Share, ...]
    """The first has the outer tensors."""
    step_s: float


def filled(memory: LayerMemory, times: StepTimes, candidates: Sequence[Candidate]) -> Found | None:
    """The stages on these devices, each filled before the next one; ``None``: nothing fits."""
    left, seconds, shares = len(memory.costs.layers), 0.0, list[Share]()
    for one in candidates:
        most = one.most if shares else one.most_as_first
        if not most:
            continue
        num_layers = min(left, most)
        seconds += num_layers * one.layer_s + (0.0 if shares else one.head_s)
        shares.append(Share(one.device, num_layers))
        left -= num_layers
        if not left:
            seconds += links_s(shares, times.local_s(1), times.network_s(1))
            return Found(tuple(shares), seconds)
    return None


def links_s(shares: Sequence[Share], local_s: float, network_s: float) -> float:
    """One way between neighbours, and one from the last stage back to the first. Stages of one
    neuron are neighbours."""
    num_neurons = len({share.device.neuron for share in shares})
    if num_neurons > 1:
        return (len(shares) - num_neurons) * local_s + num_neurons * network_s
    return len(shares) * local_s if len(shares) > 1 else 0.0
