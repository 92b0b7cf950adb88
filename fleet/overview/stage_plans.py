"""Plans a model's stages for operators, without loading anything.

CatalogueEntry ─▶ files that describe it ─▶ ModelCosts ─▶ the plan, and what else would fit
                  in the hub, or on this disk
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fleet.catalogue import CatalogueEntry
from fleet.errors import PlanUnavailableError
from fleet.hub.layer_costs import entry_costs
from fleet.live.snapshot import FleetSnapshot
from fleet.placement.stages import Spread, StageDevice, StagePlan, StageRefusal, plan_stages
from fleet.placement.stages.devices import stage_devices
from fleet.placement.stages.planning import KV_TOKENS
from inference.loading.costs.model_costs import ModelCosts
from inference.protocol.load import LoadSpec

MIB = 1024**2
FEWER_TOKENS = (4096, 256)
"""Plans with room for so many tokens follow where none has room for ``KV_TOKENS``."""
WHAT_LOADS_DO = (
    "A load divides a model only where no device could hold it: by whole layers, over devices of "
    "one host; with spread fleet over several hosts where no one could hold it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    words: str
    plan: StagePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    costs: ModelCosts
    kv_tokens: int
    """Each plan has room for the keys and values of at least so many tokens."""
    plan: StagePlan | None
    refusal: StageRefusal | None
    alternatives: tuple[Alternative, ...]


def stage_plan(entry: CatalogueEntry, snapshot: FleetSnapshot) -> PlannedModel:
    """Reads the model's config or file headers; the hub's by range. Raises
    ``PlanUnavailableError``, ``HubError``."""
    if entry.base is not None:
        raise PlanUnavailableError(f"{entry.name} is an adapter: plan its base, {entry.base}")
    if entry.upstream_model is not None:
        raise PlanUnavailableError(f"{entry.name} is served by an upstream: it needs no devices")
    if entry.tensor_parallel > 1:
        raise PlanUnavailableError(
            f"{entry.name} has {entry.tensor_parallel} ranks (tensor_parallel), which lie on as "
            "many equal cards of one host: plans are of stages"
        )
    devices = _devices(entry, snapshot)
    spec = entry.load_spec(job_id="", neuron="")
    free_bytes = max((one.free_bytes for one in devices), default=0)
    costs = entry_costs(entry, free_bytes)
    return _planned(costs, devices, _devices(entry, snapshot, is_empty=True), _tokens(spec, costs))


def _devices(
    entry: CatalogueEntry, snapshot: FleetSnapshot, *, is_empty: bool = False
) -> list[StageDevice]:
    """The devices that the model may be on."""
    least_bytes = (entry.min_device_vram_mb or 0) * MIB
    large = {
        (neuron.name, info.kind, info.index)
        for neuron in snapshot.neurons
        for info in neuron.devices
        if info.total_memory_bytes >= least_bytes and not (info.kind == "cpu" and least_bytes)
    }
    names = {
        (neuron, "cpu" if kind == "cpu" else f"{kind}:{index}") for neuron, kind, index in large
    }
    return [
        one
        for one in stage_devices(snapshot, only=entry.pinned_on, is_empty=is_empty)
        if entry.device in ("auto", one.kind) and (one.neuron, one.name) in names
    ]


def _tokens(spec: LoadSpec, costs: ModelCosts) -> tuple[int, ...]:
    """Returns how many tokens of keys and values to plan for, the most wanted number first."""
    if spec.kv_memory_bytes is not None:
        token_bytes = sum(layer.kv_token_bytes.cuda for layer in costs.layers)
        return (spec.kv_memory_bytes // max(1, token_bytes),)
    return (KV_TOKENS, *FEWER_TOKENS)


def _planned(
    costs: ModelCosts,
    devices: list[StageDevice],
    empty: list[StageDevice],
    tokens: tuple[int, ...],
) -> PlannedModel:
    """One host is the first choice, several the next."""
    refusal: StageRefusal | None = None
    for kv_tokens in tokens:
        for spread in ("host", "fleet"):
            plan = plan_stages(costs, devices, spread=spread, kv_tokens=kv_tokens)
            if isinstance(plan, StagePlan):
                found = tuple(_alternatives(costs, devices, empty, kv_tokens, plan))
                return PlannedModel(
                    costs=costs, kv_tokens=kv_tokens, plan=plan, refusal=None, alternatives=found
                )
            refusal = plan
    found = tuple(_alternatives(costs, devices, empty, tokens[-1], None))
    return PlannedModel(
        costs=costs, kv_tokens=tokens[-1], plan=None, refusal=refusal, alternatives=found
    )


def _alternatives(
    costs: ModelCosts,
    devices: list[StageDevice],
    empty: list[StageDevice],
    kv_tokens: int,
    chosen: StagePlan | None,
) -> Iterator[Alternative]:
    """Other plans, each once."""
    known = {_where(chosen)} if chosen else set()
    processors = [one for one in devices if one.kind == "cpu"]
    options: list[tuple[str, list[StageDevice], Spread]] = [
        ("on one device", devices, "device"),
        ("on one host", devices, "host"),
        ("over all hosts", devices, "fleet"),
        ("on processors alone", processors, "fleet"),
        ("on one host, were nothing loaded", empty, "host"),
        ("over all hosts, were nothing loaded", empty, "fleet"),
    ]
    for words, among, spread in options:
        plan = plan_stages(costs, among, spread=spread, kv_tokens=kv_tokens)
        if isinstance(plan, StagePlan) and _where(plan) not in known:
            known.add(_where(plan))
            yield Alternative(words=words, plan=plan)


def _where(plan: StagePlan) -> tuple[tuple[str, str, int], ...]:
    return tuple((stage.neuron, stage.device, stage.num_layers) for stage in plan.stages)
