"""The description of a catalogue model, which each dialect encodes. Pure.

``limit`` is the enforced limit, and capabilities are the loaded replicas'. For an unloaded model
they come from the catalogue: from its last loads and the operator's limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from inference.protocol.model_limit import ModelLimit, model_limit, with_text


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrices:
    """Micro-USD per million tokens; 0 is free."""

    input_micro_usd: int
    cached_input_micro_usd: int
    output_micro_usd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProgress:
    """Progress of the load that is furthest; ``total`` is 0 while it is unknown."""

    stage: str
    done: int
    total: int
    unit: str
    eta_s: float | None
    """Estimated seconds until this stage ends; ``None`` without an estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStage:
    """The model's layers ``[first_layer, last_layer)``, on one device."""

    node: str
    device: str
    first_layer: int
    last_layer: int
    memory_mb: int
    """The measured memory on that device; on another neuron than the engine's, the estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLocation:
    """A neuron that holds the model, in the original's fields. ``status`` is ``loaded``, or the
    replica's other state."""

    node: str
    status: str
    vram_estimate_mb: int | None
    stages: tuple[ModelStage, ...] = ()
    predicted_tokens_per_s: float | None = None
    """The plan of ``stages`` predicts this rate for one request."""
    tokens_per_s: float | None = None
    """The measured rate now, of all requests together."""


LOADED = "loaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """``status`` is the best of its replicas', ``outdated`` where they serve an older catalogue
    entry, or ``unloaded``; ``status_reason`` is why it failed, or the stage that it waits for.
    ``locations`` are the neurons that hold or load it, ``feasible_on`` those that could serve it.
    ``capabilities`` are common to all ready replicas; ``None``: it was never loaded."""

    id: str
    created_unix_s: int
    description: str
    aliases: tuple[str, ...]
    status: str
    locations: tuple[ModelLocation, ...]
    feasible_on: tuple[str, ...]
    context_tokens: int | None
    max_output_tokens: int | None = None
    capabilities: tuple[str, ...] | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Its sampling defaults, by the names of ``SamplingOptions``."""
    prices: ModelPrices | None = None
    status_reason: str | None = None
    progress: ModelProgress | None = None
    parent: str | None = None
    """An adapter's base. Memory and limits are the base's."""

    def can(self, capability: str) -> bool | None:
        return None if self.capabilities is None else capability in self.capabilities

    @property
    def is_loaded(self) -> bool:
        return any(location.status == LOADED for location in self.locations)

    @property
    def named_capabilities(self) -> tuple[str, ...] | None:
        """The capabilities, with the original's ``text`` for models that answer in words."""
        if self.capabilities is None:
            return None
        return with_text(self.capabilities)

    @property
    def only_reads(self) -> bool:
        return bool(self.can("embeddings") or self.can("rerank"))

    @property
    def limit(self) -> ModelLimit | None:
        """``None``: neither a load nor the operator has set one."""
        if self.context_tokens is None:
            return None
        return model_limit(self.context_tokens, self.max_output_tokens, only_reads=self.only_reads)


def own_fields(card: ModelCard, name: str) -> dict[str, Any]:
    """helexa's fields of every dialect's model object. There is no ``cost`` where the model is not
    priced. ``name`` is the card's id or one of its aliases."""
    return {
        "description": card.description,
        **({} if name == card.id else {"alias_of": card.id}),
        "aliases": [alias for alias in card.aliases if alias != name],
        **({} if card.parent is None else {"parent": card.parent}),
        "limit": None if card.limit is None else asdict(card.limit),
        **_cost(card.prices),
        "sampling_defaults": dict(card.sampling),
        "tool_call": card.can("tool_call"),
        "reasoning": card.can("reasoning"),
        "loaded": card.is_loaded,
        "locations": [_location(location) for location in card.locations],
        "feasible_on": card.feasible_on,
        "status": card.status,
        **({} if card.status_reason is None else {"status_reason": card.status_reason}),
        **({} if card.progress is None else {"progress": asdict(card.progress)}),
    }


def _cost(prices: ModelPrices | None) -> dict[str, Any]:
    if prices is None:
        return {}
    return {
        "cost": {
            "input": _usd(prices.input_micro_usd),
            "output": _usd(prices.output_micro_usd),
            "cache_read": _usd(prices.cached_input_micro_usd),
        }
    }


def _usd(micro_usd: int) -> orjson.Fragment:
    """An exact decimal as a JSON number; a float would be off in its last digits."""
    whole, fraction = divmod(micro_usd, 1_000_000)
    return orjson.Fragment(f"{whole}.{fraction:06d}".rstrip("0").rstrip("."))


def _location(location: ModelLocation) -> dict[str, Any]:
    found = asdict(location)
    if not location.stages:
        for name in ("stages", "predicted_tokens_per_s", "tokens_per_s"):
            del found[name]
    return found
