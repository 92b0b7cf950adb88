"""Searches the devices for the stages with the shortest step of one stream. Pure.

    fastest first      cuda:0 ───────── cuda:1 ──────────── cpu
    a set of devices   filled           filled              the rest

A set is filled from its fastest device on, which also has the outer tensors; the last one gets the
rest. Branch and bound over all sets: a branch whose layers alone would take longer than the best
plan is cut. So another device never makes the best plan slower.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from fleet.placement.stages.devices import StageDevice
from fleet.placement.stages.layer_memory import LayerMemory
from fleet.placement.stages.step_times import StepTimes

MAX_NODES = 200
"""After so many branches the best plan so far counts: it is within some links of the best."""


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


def least_s(candidates: Iterable[Candidate], left: int) -> float | None:
    """A lower bound of the seconds for ``left`` layers on these devices, the fastest first, without
    links; ``None``: there is no room."""
    seconds = 0.0
    for one in candidates:
        num_layers = min(left, one.most)
        seconds, left = seconds + num_layers * one.layer_s, left - num_layers
        if left == 0:
            return seconds
    return None


class Search:
    def __init__(
        self, memory: LayerMemory, times: StepTimes, candidates: Sequence[Candidate]
    ) -> None:
        self._num_layers = len(memory.costs.layers)
        self._candidates = list(candidates)
        self._local_s = times.local_s(1)
        self._network_s = times.network_s(1)
        self._best: Found | None = None
        self._num_nodes = 0

    def run(self, best: Found | None = None) -> Found | None:
        """``best``: to be improved on. ``None``: nothing fits."""
        self._best, self._num_nodes = best, 0
        if not self._may_win(0, self._num_layers, 0.0, []):
            return best
        self._fill(self._candidates)
        for own in self._by_neuron():
            self._fill(own)
        self._extend(0, self._num_layers, 0.0, [])
        return self._best

    def _fill(self, candidates: Sequence[Candidate]) -> None:
        left, seconds, shares = self._num_layers, 0.0, list[Share]()
        for one in candidates:
            seconds, most = self._start(one, seconds, shares)
            if left <= most:
                self._offer([*shares, Share(one.device, left)], seconds + left * one.layer_s)
                return
            if most:
                shares.append(Share(one.device, most))
                seconds, left = seconds + most * one.layer_s, left - most

    def _extend(self, index: int, left: int, seconds: float, shares: list[Share]) -> None:
        """Adds one device from ``index`` on, and others after it, for the ``left`` layers.
        ``seconds``: of the placed layers."""
        for at in range(index, len(self._candidates)):
            self._num_nodes += 1
            if self._num_nodes > MAX_NODES or not self._may_win(at, left, seconds, shares):
                return
            one = self._candidates[at]
            spent_s, most = self._start(one, seconds, shares)
            if left <= most:
                self._offer([*shares, Share(one.device, left)], spent_s + left * one.layer_s)
                continue
            if most:
                more = [*shares, Share(one.device, most)]
                self._extend(at + 1, left - most, spent_s + most * one.layer_s, more)

    def _start(self, one: Candidate, seconds: float, shares: Sequence[Share]) -> tuple[float, int]:
        """The seconds including the outer tensors, and the number of layers it has room for."""
        return (seconds, one.most) if shares else (seconds + one.head_s, one.most_as_first)

    def _offer(self, shares: Sequence[Share], seconds: float) -> None:
        seconds += links_s(shares, self._local_s, self._network_s)
        if self._best is None or seconds < self._best.step_s:
            self._best = Found(tuple(shares), seconds)

    def _may_win(self, at: int, left: int, seconds: float, shares: Sequence[Share]) -> bool:
        """Whether these layers could be faster than the best plan; ``False`` also where the devices
        from ``at`` on have no room for them."""
        if self._best is not None and len(shares) > 1:
            seconds += least_links_s(shares, self._local_s, self._network_s)
        bound_s = least_s(self._candidates[at:], left)
        return bound_s is not None and (self._best is None or seconds + bound_s < self._best.step_s)

    def _by_neuron(self) -> Iterator[list[Candidate]]:
        by_name = sorted(self._candidates, key=lambda one: one.device.neuron)  # stable: by speed
        for _, own in groupby(by_name, key=lambda one: one.device.neuron):
            yield list(own)


def links_s(shares: Sequence[Share], local_s: float, network_s: float) -> float:
    """One way between neighbours, and one from the last stage back to the first. Stages of one
    neuron are neighbours."""
    is_alone = len({share.device.neuron for share in shares}) == 1
    answer_s = local_s if is_alone and len(shares) > 1 else 0.0
    return answer_s + least_links_s(shares, local_s, network_s)


def least_links_s(shares: Sequence[Share], local_s: float, network_s: float) -> float:
    """The same without the way back within one host: never less with more stages."""
    neurons = {share.device.neuron for share in shares}
    seconds = (len(shares) - len(neurons)) * local_s
    if len(neurons) > 1:
        seconds += len(neurons) * network_s
    return seconds
