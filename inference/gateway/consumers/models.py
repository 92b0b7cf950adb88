"""GET /v1/models and /v1/models/{id}: the catalogue, with the state of the live fleet.

In OpenAI's shape, or in Anthropic's for clients that send ``anthropic-version``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.entry import is_outdated
from fleet.catalogue.targets import UPSTREAM_PREFIX
from fleet.live.snapshot import FleetSnapshot, ReplicaView
from fleet.placement.failures import failed_loads
from fleet.placement.room import feasible_on
from inference.gateway.consumers.api_consumer import ApiConsumer
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_report import StageReport
from inference.wire.error_envelopes import anthropic_errors
from inference.wire.errors import ModelNotAllowedError
from inference.wire.models import (
    LOADED,
    ModelCard,
    ModelLocation,
    ModelProgress,
    ModelStage,
    PageRequest,
    anthropic_model,
    anthropic_model_list,
    openai_model,
    openai_model_list,
    parse_page,
)

BEST_FIRST = (
    ReplicaStatus.READY,
    ReplicaStatus.RECOVERING,
    ReplicaStatus.LOADING,
    ReplicaStatus.ASLEEP,
    ReplicaStatus.DRAINING,
    ReplicaStatus.FAILED,
)
UNLOADED = "unloaded"
MIB = 1024**2
OUTDATED = "outdated"


Listed = tuple[CatalogueEntry, FleetSnapshot, CatalogueEntry | None]
"""The model's entry, the fleet, and the entry that is loaded for it (an adapter's base)."""


class ListedModelsConsumer(ApiConsumer):
    async def listed(self) -> list[Listed]:
        """Raises ``ApiError``."""
        entries = await self.gateway.catalogue.entries()
        return await self._with_bases([one for one in entries if self.call.who.may_use(one)])

    async def one_listed(self, name: str) -> Listed:
        """Raises ``ApiError``."""
        entry = await self.gateway.catalogue.find(name)
        if not self.call.who.may_use(entry):
            raise ModelNotAllowedError(entry.name)
        return (await self._with_bases([entry]))[0]

    async def _with_bases(self, entries: Sequence[CatalogueEntry]) -> list[Listed]:
        snapshot = await self.gateway.liveness.snapshot()
        bases = await self.gateway.catalogue.by_name()
        return [(one, snapshot, bases.get(one.base or one.name)) for one in entries]


class ModelsConsumer(ListedModelsConsumer):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if b"anthropic-version" in dict(scope["headers"]):
            self.errors = anthropic_errors
        await super().__call__(scope, receive, send)

    @property
    def _is_anthropic(self) -> bool:
        return self.errors is anthropic_errors

    async def models(self, body: bytes) -> None:
        page = parse_page(self.query) if self._is_anthropic else PageRequest()
        cards = [model_card(*listed) for listed in await self.listed()]
        if self._is_anthropic:
            await self.respond(200, anthropic_model_list(cards, page))
        else:
            await self.respond(200, openai_model_list(cards))

    async def model(self, body: bytes) -> None:
        card = model_card(*await self.one_listed(self.named))
        shape = anthropic_model if self._is_anthropic else openai_model
        await self.respond(200, orjson.dumps(shape(card, card.id)))


def model_card(
    entry: CatalogueEntry, snapshot: FleetSnapshot, base: CatalogueEntry | None = None
) -> ModelCard:
    base = base or entry
    prices = entry.highest_prices
    shared: dict[str, Any] = {
        "id": entry.name,
        "created_unix_s": entry.created_unix_s,
        "description": entry.description,
        "aliases": entry.aliases,
        "prices": prices
        and (prices.input_micro_usd, prices.cached_input_micro_usd, prices.output_micro_usd),
    }
    if base.upstream_model is not None:
        return _forwarded_card(entry, base.upstream_names, shared)
    replicas = snapshot.replicas_of(base.name)
    ready = [replica for replica in replicas if replica.status is ReplicaStatus.READY]
    status = _status(base, replicas, ready)
    if status == UNLOADED and snapshot.absent_holders(base.name):
        status = ReplicaStatus.RECOVERING.value
    return ModelCard(
        status=status,
        status_reason=_reason(base, snapshot, replicas, status),
        progress=None if ready else _progress(replicas),
        locations=tuple(
            _location(replica) for replica in replicas if replica.status is not ReplicaStatus.FAILED
        ),
        feasible_on=_feasible_on(base, snapshot),
        sampling={**_files_defaults(ready), **base.sampling_defaults},
        parent=entry.base,
        **shared,
        **_limits(base, ready),
    )


def _forwarded_card(
    entry: CatalogueEntry, upstreams: Sequence[str], shared: dict[str, Any]
) -> ModelCard:
    """A model of another task has it as its only capability: clients offer it for no chat."""
    return ModelCard(
        status=ReplicaStatus.READY.value,
        locations=tuple(
            ModelLocation(node=f"{UPSTREAM_PREFIX}{name}", status=LOADED, vram_estimate_mb=None)
            for name in upstreams
        ),
        feasible_on=(),
        context_tokens=entry.max_context_tokens,
        max_output_tokens=entry.max_output_tokens,
        capabilities=None if entry.task == "text" else (entry.task,),
        sampling=entry.sampling_defaults,
        **shared,
    )


def _limits(entry: CatalogueEntry, ready: Sequence[ReplicaView]) -> dict[str, Any]:
    """A request may land on any ready replica, so the smallest limit holds."""
    loads = ready or entry.measured_loads
    contexts = [one.context_tokens for one in loads]
    outputs = [one.max_output_tokens for one in ready]
    if not ready:
        contexts, outputs = [*contexts, entry.max_context_tokens], [entry.max_output_tokens]
    known = [one.capabilities for one in loads if one.capabilities is not None]
    return {
        "context_tokens": min([one for one in contexts if one is not None], default=None),
        "max_output_tokens": min([one for one in outputs if one is not None], default=None),
        "capabilities": tuple(one for one in known[0] if all(one in other for other in known))
        if known
        else None,
    }


def _status(
    entry: CatalogueEntry, replicas: Sequence[ReplicaView], ready: Sequence[ReplicaView]
) -> str:
    if ready:
        is_current = any(not is_outdated(replica.spec_digest, entry) for replica in ready)
        return ReplicaStatus.READY.value if is_current else OUTDATED
    best = min((replica.status for replica in replicas), key=BEST_FIRST.index, default=None)
    return UNLOADED if best is None else best.value


def _location(replica: ReplicaView) -> ModelLocation:
    is_ready = replica.status is ReplicaStatus.READY
    memory_bytes = replica.memory_bytes
    return ModelLocation(
        node=replica.neuron,
        status=LOADED if is_ready else replica.status.value,
        vram_estimate_mb=None if memory_bytes is None else memory_bytes // MIB,
        stages=_stages(replica),
        predicted_tokens_per_s=replica.report.predicted_tokens_per_s if replica.report else None,
        tokens_per_s=replica.decode_tokens_per_s,
    )


def _stages(replica: ReplicaView) -> tuple[ModelStage, ...]:
    if replica.report is None or not replica.report.stages:
        return ()
    taken = {
        one.device: one.actual_bytes + one.process_bytes for one in replica.report.stage_memory
    }
    return tuple(
        ModelStage(
            node=one.neuron or replica.neuron,
            device=one.device,
            first_layer=one.layers[0],
            last_layer=one.layers[1],
            memory_mb=_stage_bytes(one, taken) // MIB,
        )
        for one in replica.report.stages
    )


def _stage_bytes(stage: StageReport, taken: Mapping[str, int]) -> int:
    if stage.neuron:
        return stage.estimated_bytes + stage.kv_bytes
    return taken.get(stage.device, 0)


def _files_defaults(ready: Sequence[ReplicaView]) -> dict[str, float]:
    report = next((replica.report for replica in ready if replica.report is not None), None)
    return {} if report is None else dict(report.generation_defaults)


def _feasible_on(entry: CatalogueEntry, snapshot: FleetSnapshot) -> tuple[str, ...]:
    replicas = snapshot.replicas_of(entry.name)
    held = {replica.neuron for replica in replicas if replica.status is not ReplicaStatus.FAILED}
    large = set(feasible_on(entry, snapshot))
    return tuple(sorted(held | (large - failed_loads(entry, replicas).neurons)))


def _reason(
    entry: CatalogueEntry, snapshot: FleetSnapshot, replicas: Sequence[ReplicaView], status: str
) -> str | None:
    if status == ReplicaStatus.FAILED.value:
        messages = (f"{r.neuron}: {r.failure.message}" for r in replicas if r.failure is not None)
        return next(messages, None)
    if status == ReplicaStatus.RECOVERING.value and not replicas:
        return f"{' and '.join(snapshot.absent_holders(entry.name))} has just fallen silent"
    return None


def _progress(replicas: Sequence[ReplicaView]) -> ModelProgress | None:
    loading = [r for r in replicas if r.status is ReplicaStatus.LOADING and r.progress is not None]
    if not loading:
        return None
    first = min(loading, key=lambda r: float("inf") if r.eta_s is None else r.eta_s)
    assert first.progress is not None, "it has been looked"
    return ModelProgress(
        stage=first.progress.stage.value,
        done=first.progress.done,
        total=first.progress.total,
        unit=first.progress.unit,
        eta_s=None if first.eta_s is None else round(first.eta_s, 1),
    )
