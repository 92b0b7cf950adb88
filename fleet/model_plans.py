"""Plans a model's stages for operators, without loading anything. Plans follow placement's rules
(``placement.division``), so each can be loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from fleet.catalogue import CatalogueEntry
from fleet.errors import PlanUnavailableError
from fleet.hub import entry_costs
from fleet.live.snapshot import FleetSnapshot
from fleet.placement.capacity import FleetCapacity
from fleet.placement.division import stage_devices, usable, why_not_divided
from fleet.placement.needs import Needs, StageDevice
from fleet.placement.stage_plans import (
    KV_TOKENS_TRIED,
    Spread,
    StagePlan,
    StageRefusal,
    plan_stages,
)
from inference.loading.model_costs import ModelCosts
from inference.protocol.load import LoadSpec

WHAT_LOADS_DO = (
    "A model that one device could hold, were nothing else loaded, is not divided: other models "
    "leave for it. With spread fleet a model lies on several hosts where no one host could hold it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    words: str
    plan: StagePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    costs: ModelCosts
    plan: StagePlan | None
    refusal: StageRefusal | None
    alternatives: tuple[Alternative, ...]


def stage_plan(entry: CatalogueEntry, snapshot: FleetSnapshot) -> PlannedModel:
    """Reads headers, the hub's by range. Raises ``PlanUnavailableError``, ``HubError``."""
    if entry.base is not None:
        raise PlanUnavailableError(f"{entry.name} is an adapter: plan its base, {entry.base}")
    if entry.upstream_model is not None:
        raise PlanUnavailableError(f"{entry.name} is served by an upstream: it needs no devices")
    if entry.tensor_parallel > 1:
        raise PlanUnavailableError(
            f"{entry.name} has {entry.tensor_parallel} ranks (tensor_parallel), which lie on as "
            "many equal cards of one host: plans are of stages"
        )
    among = tuple(usable(Needs(entry), FleetCapacity(snapshot, None)))
    devices = stage_devices(among, lambda one: one.info.free_memory_bytes)
    empty = stage_devices(among, lambda one: one.info.total_memory_bytes)
    spec = entry.load_spec(job_id="", neuron="")
    free_bytes = max((one.free_bytes for one in devices), default=0)
    costs = entry_costs(entry, free_bytes)
    lending = {neuron.name for neuron in snapshot.neurons if neuron.stage_host}
    planning = Planning(costs, devices, empty, lending)
    return planning.run(entry, _tokens(spec, costs))


def _tokens(spec: LoadSpec, costs: ModelCosts) -> tuple[int, ...]:
    if spec.kv_memory_bytes is not None:
        token_bytes = sum(layer.kv_token_bytes.cuda for layer in costs.layers)
        return (spec.kv_memory_bytes // max(1, token_bytes),)
    return KV_TOKENS_TRIED


@dataclass(frozen=True, slots=True)
class Planning:
    costs: ModelCosts
    devices: list[StageDevice]
    empty: list[StageDevice]
    """The same devices as if nothing were loaded."""
    lending: Collection[str]
    """The neurons that lend stages to others."""

    def run(self, entry: CatalogueEntry, tokens: Sequence[int]) -> PlannedModel:
        spread = self._spread(entry, tokens[-1])
        for kv_tokens in tokens:
            plan = self._plan(self.devices, spread, kv_tokens)
            if isinstance(plan, StagePlan):
                break
        return PlannedModel(
            costs=self.costs,
            plan=plan if isinstance(plan, StagePlan) else None,
            refusal=plan if isinstance(plan, StageRefusal) else None,
            alternatives=tuple(self._alternatives(entry, plan, spread, kv_tokens)),
        )

    def _spread(self, entry: CatalogueEntry, kv_tokens: int) -> Spread:
        """The narrowest extent that could hold it, were nothing loaded."""
        if why_not_divided(entry) or self._could_hold("device", kv_tokens):
            return "device"
        is_wide = entry.spread == "fleet" and len(self.lending) > 1
        if is_wide and not self._could_hold("host", kv_tokens):
            return "fleet"
        return "host"

    def _could_hold(self, spread: Spread, kv_tokens: int) -> bool:
        return isinstance(self._plan(self.empty, spread, kv_tokens), StagePlan)

    def _alternatives(
        self,
        entry: CatalogueEntry,
        chosen: StagePlan | StageRefusal,
        spread: Spread,
        kv_tokens: int,
    ) -> Iterator[Alternative]:
        known = {_where(chosen)} if isinstance(chosen, StagePlan) else set()
        processors = [one for one in self.devices if one.kind == "cpu"]
        options: list[tuple[str, list[StageDevice], Spread]] = [
            ("on processors alone", processors, spread),
            ("were nothing loaded", self.empty, spread),
        ]
        if spread == "host" and entry.spread == "host" and not self._could_hold("host", kv_tokens):
            options += [
                ("over several hosts, with spread fleet", self.devices, "fleet"),
                ("over several hosts, with spread fleet, were nothing loaded", self.empty, "fleet"),
            ]
        for words, among, widest in options:
            plan = self._plan(among, widest, kv_tokens)
            if isinstance(plan, StagePlan) and _where(plan) not in known:
                known.add(_where(plan))
                yield Alternative(words=words, plan=plan)

    def _plan(
        self, among: list[StageDevice], spread: Spread, kv_tokens: int
    ) -> StagePlan | StageRefusal:
        if spread == "fleet":
            among = [one for one in among if one.neuron in self.lending]
        return plan_stages(self.costs, among, spread=spread, kv_tokens=kv_tokens)


def _where(plan: StagePlan) -> tuple[tuple[str, str, int], ...]:
    return tuple((stage.neuron, stage.device, stage.num_layers) for stage in plan.stages)
