"""Divides a model over a fleet's devices: from costs to stages, or to the missing bytes. Pure.

whole on a card ─▶ one stage, on the fastest that holds it: what fits is not split
else            ─▶ the stages with the shortest step, cards and processors alike
else            ─▶ how many layers each device could hold, and the missing bytes

The fastest device is filled first, and has the outer tensors: no other division over the same
devices reads its weights faster. Tokens per second, by the groups of requests in flight: as many as
keep all stages busy, and as few as read the weights seldom.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from fleet.placement.needs import (
    BLOCK_TOKENS,
    GB,
    LEAST_TOKENS,
    NUM_STATES,
    WANTED_CONTEXTS,
    KindCosts,
    StageDevice,
    beside_bytes,
    kv_bytes,
)
from inference.loading.model_costs import Kind, ModelCosts

Spread = Literal["device", "host", "fleet"]
"""The widest extent of one replica."""
MANY = 16
TOKENS_PER_REQUEST = 1024
"""Assumed keys and values of a request."""
KV_TOKENS = MANY * TOKENS_PER_REQUEST
KV_TOKENS_TRIED = (KV_TOKENS, 4096, LEAST_TOKENS)
"""Keys and values to plan for, in order of preference."""
ROW_BYTES = 2
"""The bytes of one feature of a hidden row on a link: bfloat16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Layers ``[first_layer, last_layer)``; the first stage also has the token table and the
    head."""

    neuron: str
    device: str
    kind: Kind
    first_layer: int
    last_layer: int
    weight_bytes: int
    kv_bytes: int
    beside_bytes: int
    free_bytes: int

    @property
    def num_layers(self) -> int:
        return self.last_layer - self.first_layer

    @property
    def used_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.beside_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    stages: tuple[Stage, ...]
    num_blocks: int
    """KV blocks on every stage: the smallest stage decides."""
    kv_tokens: int
    tokens_per_s: float
    """The rate of one stream."""
    tokens_per_s_of_many: float
    """The rate of ``MANY`` requests together."""
    num_running: int
    """So many of the ``MANY`` have their blocks at once."""

    @property
    def neurons(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(stage.neuron for stage in self.stages))

    @property
    def where(self) -> str:
        """``box cuda:0 + cuda:1, attic cpu``."""
        parts = []
        for neuron in self.neurons:
            devices = [stage.device for stage in self.stages if stage.neuron == neuron]
            parts.append(f"{neuron} {' + '.join(devices)}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRefusal:
    needed_bytes: int
    """Cards need these for weights and the KV of the planned tokens."""
    words: str


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    device: StageDevice
    costs: KindCosts
    most: int
    most_as_first: int

    def layer_s(self, num_rows: float) -> float:
        return self.costs.layer_s(self.device.speed, num_rows)


Shares = Sequence[tuple[Candidate, int]]
"""Devices with their numbers of layers; the first has the outer tensors."""


def plan_stages(
    costs: ModelCosts,
    devices: Collection[StageDevice],
    *,
    spread: Spread = "fleet",
    kv_tokens: int = KV_TOKENS,
) -> StagePlan | StageRefusal:
    """``kv_tokens``: the room on every stage. The order of ``devices`` does not matter."""
    kinds: dict[Kind, KindCosts] = {
        kind: KindCosts(costs, kind, kv_tokens) for kind in {one.kind for one in devices}
    }
    found = [_candidate(kinds[device.kind], device) for device in devices]
    candidates = sorted((one for one in found if one.most), key=_fastest_first)
    cards = [[one] for one in candidates if one.device.kind == "cuda"]
    tried = _groups(candidates, "device")
    if spread != "device":
        tried += _groups(candidates, "host")
    if spread == "fleet":
        tried.append(candidates)
    shares = _shortest(costs, cards) or _shortest(costs, tried)
    if shares is None:
        return _refusal(costs, kv_tokens, candidates, spread)
    return _plan(costs, kv_tokens, shares)


def _candidate(costs: KindCosts, device: StageDevice) -> Candidate:
    return Candidate(
        device=device,
        costs=costs,
        most=costs.most_layers(device, is_first=False),
        most_as_first=costs.most_layers(device, is_first=True),
    )


def _fastest_first(one: Candidate) -> tuple[float, int, int, str, str]:
    device = one.device
    return (one.layer_s(1), -one.most, -one.most_as_first, device.neuron, device.name)


def _groups(candidates: Sequence[Candidate], spread: Spread) -> list[list[Candidate]]:
    if spread == "device":
        return [[one] for one in candidates]
    by_name = sorted(candidates, key=lambda one: one.device.neuron)
    return [list(own) for _, own in groupby(by_name, key=lambda one: one.device.neuron)]


def _shortest(costs: ModelCosts, tried: Sequence[Sequence[Candidate]]) -> Shares | None:
    found = (_filled(len(costs.layers), among) for among in tried)
    fitting = (shares for shares in found if shares)
    return min(fitting, key=lambda shares: 1 / tokens_per_s(costs, shares, 1), default=None)


def _filled(num_layers: int, candidates: Sequence[Candidate]) -> Shares:
    left, shares = num_layers, list[tuple[Candidate, int]]()
    for one in candidates:
        if most := min(left, one.most if shares else one.most_as_first):
            shares.append((one, most))
            left -= most
    return () if left else shares


def tokens_per_s(costs: ModelCosts, shares: Shares, num_running: int) -> float:
    def in_groups(num_groups: int) -> float:
        num_rows = num_running / num_groups
        stages = [num_layers * one.layer_s(num_rows) for one, num_layers in shares]
        first = shares[0][0]
        stages[0] += first.costs.head_s(first.device.speed, num_rows)
        round_s = sum(stages) + _links_s(shares, num_rows * costs.hidden_size * ROW_BYTES)
        return num_running / max(num_groups * max(stages), round_s)

    return max(map(in_groups, range(1, min(len(shares), num_running) + 1)))


def _links_s(shares: Shares, num_bytes: float) -> float:
    """One way between neighbours, and one from the last stage back to the first. Stages of one
    neuron are neighbours, and their links two copies through its memory. Between hosts there is
    Gigabit Ethernet (IEEE 802.3ab) less its frames, through one switch."""
    num_links = len(shares) if len(shares) > 1 else 0
    num_neurons = len({one.device.neuron for one, _ in shares})
    num_far = num_neurons if num_neurons > 1 else 0
    local_s = 50e-6 + num_bytes / (10 * GB)
    network_s = 200e-6 + num_bytes / (0.117 * GB)
    return (num_links - num_far) * local_s + num_far * network_s


def _plan(costs: ModelCosts, least_kv_tokens: int, shares: Shares) -> StagePlan:
    order = list(dict.fromkeys(one.device.neuron for one, _ in shares))
    shares = sorted(shares, key=lambda share: order.index(share[0].device.neuron))
    empty: list[Stage] = []
    for one, num_layers in shares:
        empty.append(_stage(costs, one.device, empty[-1].last_layer if empty else 0, num_layers))
    block_bytes = [BLOCK_TOKENS * _token_bytes(costs, stage) for stage in empty]
    wanted_tokens = max(least_kv_tokens, WANTED_CONTEXTS * costs.context_tokens)
    most_blocks = [
        (stage.free_bytes - stage.used_bytes) // each
        for stage, each in zip(empty, block_bytes, strict=True)
        if each
    ]
    num_blocks = min([-(-wanted_tokens // BLOCK_TOKENS), *most_blocks])
    kv_tokens = num_blocks * BLOCK_TOKENS
    num_running = max(1, min(MANY, kv_tokens // TOKENS_PER_REQUEST))
    return StagePlan(
        stages=tuple(
            replace(stage, kv_bytes=stage.kv_bytes + num_blocks * each)
            for stage, each in zip(empty, block_bytes, strict=True)
        ),
        num_blocks=num_blocks,
        kv_tokens=kv_tokens,
        tokens_per_s=tokens_per_s(costs, shares, 1),
        tokens_per_s_of_many=tokens_per_s(costs, shares, num_running),
        num_running=num_running,
    )


def _stage(costs: ModelCosts, device: StageDevice, first: int, num_layers: int) -> Stage:
    kind = device.kind
    layers = costs.layers[first : first + num_layers]
    layers_bytes = sum(one.weight_bytes.on(kind) + one.expert_bytes.on(kind) for one in layers)
    return Stage(
        neuron=device.neuron,
        device=device.name,
        kind=kind,
        first_layer=first,
        last_layer=first + num_layers,
        weight_bytes=layers_bytes + (0 if first else costs.outer_bytes.on(kind)),
        kv_bytes=NUM_STATES * sum(one.state_bytes for one in layers),
        beside_bytes=beside_bytes(costs, kind),
        free_bytes=device.free_bytes,
    )


def _token_bytes(costs: ModelCosts, stage: Stage) -> int:
    layers = costs.layers[stage.first_layer : stage.last_layer]
    return sum(layer.kv_token_bytes.on(stage.kind) for layer in layers)


def _refusal(
    costs: ModelCosts, kv_tokens: int, candidates: Sequence[Candidate], spread: Spread
) -> StageRefusal:
    together = [candidates] if spread == "fleet" and candidates else _groups(candidates, spread)
    closest = max(map(_rooms, together), key=_num_layers, default=[])
    num_layers = len(costs.layers)
    kv = sum(kv_bytes(layer, "cuda", kv_tokens) for layer in costs.layers)
    needed_bytes = costs.weight_bytes.cuda + kv
    if not closest:
        words = f"it needs {_gb(needed_bytes)}, and no device takes loads"
        return StageRefusal(needed_bytes=needed_bytes, words=words)
    missing_layers = max(1, num_layers - _num_layers(closest))
    missing_bytes = (needed_bytes - costs.outer_bytes.cuda) * missing_layers // num_layers
    rooms = "; ".join(
        f"{device.name} of {device.neuron} has {_gb(device.free_bytes)} free, for {number} layers"
        for device, number in closest
    )
    return StageRefusal(
        needed_bytes=needed_bytes,
        words=f"its {num_layers} layers need {_gb(needed_bytes)} ({_gb(kv)} of keys and values), "
        f"and {_gb(missing_bytes)} are missing: {rooms}",
    )


def _rooms(candidates: Sequence[Candidate]) -> list[tuple[StageDevice, int]]:
    """The device that loses least by them has the outer tensors."""
    first = min(candidates, key=lambda one: one.most - one.most_as_first)
    rooms = [(one.device, one.most_as_first if one is first else one.most) for one in candidates]
    return sorted(rooms, key=lambda room: -room[1])


def _num_layers(rooms: Sequence[tuple[StageDevice, int]]) -> int:
    return sum(number for _, number in rooms)


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"


def divided(
    costs: ModelCosts,
    devices: Sequence[StageDevice],
    tokens: Sequence[int],
    spread: Spread = "host",
) -> StagePlan | StageRefusal:
    """``tokens``: keys and values, in order of preference. A plan of one stage, on a device that
    cannot hold the model though its layers' estimate fits, is divided as well."""
    *preferred, least = tokens
    for kv_tokens in preferred:
        plan = _divided(costs, devices, kv_tokens, spread)
        if isinstance(plan, StagePlan):
            return plan
    return _divided(costs, devices, least, spread)


def least_bytes(costs: ModelCosts, stage: Stage, kv_tokens: int) -> int:
    states_bytes = NUM_STATES * sum(
        layer.state_bytes for layer in costs.layers[stage.first_layer : stage.last_layer]
    )
    kv = states_bytes + kv_tokens * _token_bytes(costs, stage)
    return stage.weight_bytes + stage.beside_bytes + kv


def _divided(
    costs: ModelCosts, devices: Sequence[StageDevice], kv_tokens: int, spread: Spread
) -> StagePlan | StageRefusal:
    while True:
        plan = plan_stages(costs, devices, spread=spread, kv_tokens=kv_tokens)
        if isinstance(plan, StageRefusal) or len(plan.stages) > 1:
            return plan
        only = (plan.stages[0].neuron, plan.stages[0].device)
        devices = [
            _without_a_layer(one, costs) if (one.neuron, one.name) == only else one
            for one in devices
        ]


def _without_a_layer(device: StageDevice, costs: ModelCosts) -> StageDevice:
    kind = device.kind
    least_layer = min(
        layer.weight_bytes.on(kind) + layer.expert_bytes.on(kind) for layer in costs.layers
    )
    less_bytes = costs.weight_bytes.on(kind) + beside_bytes(costs, kind) - max(1, least_layer)
    return replace(device, free_bytes=max(0, min(device.free_bytes - 1, less_bytes)))
