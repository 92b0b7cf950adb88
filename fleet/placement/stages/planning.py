"""Divides a model over a fleet's devices: from costs to stages, or to the missing bytes. Pure.

whole on a card ─▶ one stage, on the fastest that holds it: what fits is not split
else            ─▶ the stages with the shortest step, cards and processors alike
else            ─▶ how many layers each device could hold, and the missing bytes

Tokens per second, by the groups of requests in flight: as many as keep all stages busy, and as few
as read the weights seldom.

    stage 1   A B A B A …
    stage 2     A B A B …
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Literal

from fleet.placement.stages.devices import StageDevice
from fleet.placement.stages.layer_memory import (
    BLOCK_TOKENS,
    LEAST_TOKENS,
    NUM_STATES,
    STAGE_BYTES,
    WANTED_CONTEXTS,
    LayerMemory,
)
from fleet.placement.stages.plans import Room, Stage, StagePlan, StageRefusal
from fleet.placement.stages.search import Candidate, Found, Share, candidates_of, filled, links_s
from fleet.placement.stages.step_times import StepTimes
from inference.loading.costs.model_costs import ModelCosts

MANY = 16
TOKENS_PER_REQUEST = 1024
"""The assumed tokens of keys and values of a request."""


def step_s(times: StepTimes, shares: Sequence[Share]) -> float:
    """One step of one sequence, through all stages and back."""
    return sum(_stage_times(times, shares, 1)) + _links_s(times, shares, 1)


def tokens_per_s(times: StepTimes, shares: Sequence[Share], num_running: int) -> float:
    return max(
        _tokens_per_s_in_groups(times, shares, num_running, num_groups)
        for num_groups in range(1, min(len(shares), num_running) + 1)
    )


def _tokens_per_s_in_groups(
    times: StepTimes, shares: Sequence[Share], num_running: int, num_groups: int
) -> float:
    num_rows = num_running / num_groups
    stages = _stage_times(times, shares, num_rows)
    round_s = max(num_groups * max(stages), sum(stages) + _links_s(times, shares, num_rows))
    return num_running / round_s


def _stage_times(times: StepTimes, shares: Sequence[Share], num_rows: float) -> list[float]:
    seconds = [share.num_layers * times.layer_s(share.device, num_rows) for share in shares]
    seconds[0] += times.head_s(shares[0].device, num_rows)
    return seconds


def _links_s(times: StepTimes, shares: Sequence[Share], num_rows: float) -> float:
    return links_s(shares, times.local_s(num_rows), times.network_s(num_rows))


Spread = Literal["device", "host", "fleet"]
"""The widest extent of one replica."""
KV_TOKENS = MANY * TOKENS_PER_REQUEST


def plan_stages(
    costs: ModelCosts,
    devices: Collection[StageDevice],
    *,
    spread: Spread = "fleet",
    kv_tokens: int = KV_TOKENS,
) -> StagePlan | StageRefusal:
    """``kv_tokens``: the room on every stage. The plan does not depend on the order of
    ``devices``."""
    memory, times = LayerMemory(costs, kv_tokens), StepTimes(costs)
    candidates = candidates_of(memory, times, devices)
    cards = [[one] for one in candidates if one.device.kind == "cuda"]
    found = _shortest(memory, times, cards) or _shortest(memory, times, _tried(candidates, spread))
    if found is None:
        return _refusal(memory, candidates, spread)
    return _plan(memory, times, found)


def _shortest(
    memory: LayerMemory, times: StepTimes, tried: Iterable[Sequence[Candidate]]
) -> Found | None:
    """The stages with the shortest step; of equals the first. ``None``: nothing fits."""
    found = (filled(memory, times, among) for among in tried)
    return min((one for one in found if one), key=lambda one: one.step_s, default=None)


def _tried(candidates: Sequence[Candidate], spread: Spread) -> list[list[Candidate]]:
    """Each device alone, each neuron's devices, and all, as far as ``spread`` goes."""
    tried = _groups(candidates, "device")
    if spread != "device":
        tried += _groups(candidates, "host")
    if spread == "fleet":
        tried.append(list(candidates))
    return tried


def _groups(candidates: Sequence[Candidate], spread: Spread) -> list[list[Candidate]]:
    if spread == "device":
        return [[one] for one in candidates]
    by_name = sorted(candidates, key=lambda one: one.device.neuron)
    return [list(own) for _, own in groupby(by_name, key=lambda one: one.device.neuron)]


def _plan(memory: LayerMemory, times: StepTimes, found: Found) -> StagePlan:
    shares = _neighbours(found.shares)
    num_blocks = min(_most_blocks(memory, shares), _wanted_blocks(memory))
    kv_tokens = num_blocks * BLOCK_TOKENS
    num_running = max(1, min(MANY, kv_tokens // TOKENS_PER_REQUEST))
    return StagePlan(
        stages=tuple(
            _stage(memory, share, first, num_blocks) for share, first in _with_firsts(shares)
        ),
        num_blocks=num_blocks,
        kv_tokens=kv_tokens,
        step_s=step_s(times, shares),
        tokens_per_s=tokens_per_s(times, shares, 1),
        tokens_per_s_of_many=tokens_per_s(times, shares, num_running),
        num_running=num_running,
    )


def _neighbours(shares: Sequence[Share]) -> list[Share]:
    """Stages of one neuron after another, the first one's neuron first."""
    order = list(dict.fromkeys(share.device.neuron for share in shares))
    return sorted(shares, key=lambda share: order.index(share.device.neuron))


def _with_firsts(shares: Sequence[Share]) -> list[tuple[Share, int]]:
    first, pairs = 0, []
    for share in shares:
        pairs.append((share, first))
        first += share.num_layers
    return pairs


def _wanted_blocks(memory: LayerMemory) -> int:
    wanted_tokens = max(memory.kv_tokens, WANTED_CONTEXTS * memory.costs.context_tokens)
    return -(-wanted_tokens // BLOCK_TOKENS)


def _most_blocks(memory: LayerMemory, shares: Sequence[Share]) -> int:
    numbers = []
    for share, first in _with_firsts(shares):
        empty = _stage(memory, share, first, num_blocks=0)
        block_bytes = BLOCK_TOKENS * _kv_token_bytes(memory, share, first)
        if block_bytes:
            numbers.append((empty.free_bytes - empty.used_bytes) // block_bytes)
    return min(numbers, default=_wanted_blocks(memory))


def _stage(memory: LayerMemory, share: Share, first: int, num_blocks: int) -> Stage:
    costs, kind = memory.costs, share.device.kind
    last = first + share.num_layers
    layers = costs.layers[first:last]
    layers_bytes = sum(one.weight_bytes.on(kind) + one.expert_bytes.on(kind) for one in layers)
    outer_bytes = 0 if first else costs.outer_bytes.on(kind)
    states_bytes = NUM_STATES * sum(one.state_bytes for one in layers)
    block_bytes = BLOCK_TOKENS * _kv_token_bytes(memory, share, first)
    return Stage(
        neuron=share.device.neuron,
        device=share.device.name,
        kind=kind,
        first_layer=first,
        last_layer=last,
        weight_bytes=outer_bytes + layers_bytes,
        kv_bytes=num_blocks * block_bytes + states_bytes,
        beside_bytes=memory.beside_bytes(kind),
        free_bytes=share.device.free_bytes,
    )


def _kv_token_bytes(memory: LayerMemory, share: Share, first: int) -> int:
    layers = memory.costs.layers[first : first + share.num_layers]
    return sum(layer.kv_token_bytes.on(share.device.kind) for layer in layers)


def _refusal(memory: LayerMemory, candidates: Sequence[Candidate], spread: Spread) -> StageRefusal:
    costs, num_layers = memory.costs, len(memory.costs.layers)
    is_one = spread == "fleet" and candidates
    together = [candidates] if is_one else _groups(candidates, spread)
    closest = max((_rooms(own) for own in together), key=_layers_of, default=())
    kv_bytes = sum(memory.kv_bytes(layer, "cuda") for layer in costs.layers)
    needed_bytes = costs.weight_bytes.cuda + kv_bytes
    layers_bytes = needed_bytes - costs.outer_bytes.cuda
    missing_layers = max(1, num_layers - _layers_of(closest))
    return StageRefusal(
        num_layers=num_layers,
        needed_bytes=needed_bytes,
        kv_bytes=kv_bytes,
        missing_bytes=layers_bytes * missing_layers // num_layers,
        rooms=closest,
    )


def _rooms(candidates: Sequence[Candidate]) -> tuple[Room, ...]:
    """The most layers first. The device that loses least by them has the outer tensors."""
    first = min(candidates, key=lambda one: one.most - one.most_as_first)
    rooms = [
        Room(
            neuron=one.device.neuron,
            device=one.device.name,
            free_bytes=one.device.free_bytes,
            num_layers=one.most_as_first if one is first else one.most,
        )
        for one in candidates
    ]
    return tuple(sorted(rooms, key=lambda room: -room.num_layers))


def _layers_of(rooms: Collection[Room]) -> int:
    return sum(room.num_layers for room in rooms)


KV_TOKENS_TRIED = (KV_TOKENS, 4096, LEAST_TOKENS)
"""Numbers of tokens of keys and values to plan for, in order of preference."""


def divided(
    costs: ModelCosts,
    devices: Sequence[StageDevice],
    tokens: Sequence[int],
    spread: Spread = "host",
) -> StagePlan | StageRefusal:
    """The plan over devices of one neuron, or with ``spread`` fleet of several. ``tokens`` are
    numbers of tokens of keys and values, in order of preference. A plan of one stage, on a device
    that cannot hold the model though its layers' estimate fits, is divided as well."""
    found: StagePlan | StageRefusal | None = None
    for kv_tokens in tokens:
        found = _divided(costs, list(devices), kv_tokens, spread)
        if isinstance(found, StagePlan):
            return found
    assert found is not None, "tokens are not empty"
    return found


def least_bytes(costs: ModelCosts, stage: Stage, kv_tokens: int) -> int:
    """The stage's bytes on its device with keys and values of so many tokens."""
    layers = costs.layers[stage.first_layer : stage.last_layer]
    token_bytes = sum(layer.kv_token_bytes.on(stage.kind) for layer in layers)
    state_bytes = NUM_STATES * sum(layer.state_bytes for layer in layers)
    return stage.weight_bytes + stage.beside_bytes + state_bytes + kv_tokens * token_bytes


def _divided(
    costs: ModelCosts, devices: list[StageDevice], kv_tokens: int, spread: Spread
) -> StagePlan | StageRefusal:
    while True:
        plan = plan_stages(costs, devices, spread=spread, kv_tokens=kv_tokens)
        if not isinstance(plan, StagePlan) or len(plan.stages) > 1:
            return plan
        (only,) = plan.stages
        devices = [_without_a_layer(one, costs) if _is_of(one, only) else one for one in devices]


def _without_a_layer(device: StageDevice, costs: ModelCosts) -> StageDevice:
    most_bytes = costs.weight_bytes.on(device.kind) + STAGE_BYTES[device.kind]
    least_layer = min(
        layer.weight_bytes.on(device.kind) + layer.expert_bytes.on(device.kind)
        for layer in costs.layers
    )
    less_bytes = most_bytes + costs.step_bytes.on(device.kind) - max(1, least_layer)
    return replace(device, free_bytes=max(0, min(device.free_bytes - 1, less_bytes)))


def _is_of(device: StageDevice, stage: Stage) -> bool:
    return (device.neuron, device.name) == (stage.neuron, stage.device)
