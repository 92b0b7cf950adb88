"""The catalogue's models in OpenAI's and Anthropic's shape.

An unloaded model's ``limit`` and capabilities come from its last loads and the operator's limits.
An alias is an entry of its own, because clients offer the listed names.
Source: https://docs.anthropic.com/en/api/models-list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

from inference.protocol.load_report import ModelLimit, model_limit, with_text
from inference.wire.dialect import page_limit, page_of
from inference.wire.errors import InvalidRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProgress:
    """Progress of the load that is furthest. ``total`` is 0 while unknown."""

    stage: str
    done: int
    total: int
    unit: str
    eta_s: float | None
    """Time until this stage ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStage:
    """``[first_layer, last_layer)``."""

    node: str
    device: str
    first_layer: int
    last_layer: int
    memory_mb: int
    """Measured on the engine's neuron, else estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLocation:
    node: str
    status: str
    vram_estimate_mb: int | None
    stages: tuple[ModelStage, ...] = ()
    predicted_tokens_per_s: float | None = None
    """Predicted by the plan of ``stages`` for one request."""
    tokens_per_s: float | None = None
    """Measured, of all requests together."""


LOADED = "loaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """``status`` is the best of its replicas', ``outdated`` where they serve an older catalogue
    entry, or ``unloaded``. ``feasible_on``: the neurons that could serve it. ``capabilities`` are
    common to all ready replicas; ``None``: never loaded."""

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
    """Keys are the names of ``SamplingOptions``."""
    prices: tuple[int, int, int] | None = None
    """Micro-USD per million tokens of input, cached input and output; 0 is free."""
    status_reason: str | None = None
    progress: ModelProgress | None = None
    parent: str | None = None
    """An adapter's base, whose memory and limits it has."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.id, *self.aliases

    @property
    def created_at(self) -> str:
        return datetime.fromtimestamp(self.created_unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def can(self, capability: str) -> bool | None:
        return None if self.capabilities is None else capability in self.capabilities

    @property
    def is_loaded(self) -> bool:
        return any(location.status == LOADED for location in self.locations)

    @property
    def named_capabilities(self) -> tuple[str, ...] | None:
        """Adds ``text`` for models that answer in words."""
        if self.capabilities is None:
            return None
        return with_text(self.capabilities)

    @property
    def only_reads(self) -> bool:
        return bool(self.can("embeddings") or self.can("rerank"))

    @property
    def limit(self) -> ModelLimit | None:
        if self.context_tokens is None:
            return None
        return model_limit(self.context_tokens, self.max_output_tokens, only_reads=self.only_reads)


def _own_fields(card: ModelCard, name: str) -> dict[str, Any]:
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


def _cost(prices: tuple[int, int, int] | None) -> dict[str, Any]:
    if prices is None:
        return {}
    given, cached, output = map(_usd, prices)
    return {"cost": {"input": given, "output": output, "cache_read": cached}}


def _usd(micro_usd: int) -> orjson.Fragment:
    """An exact decimal: a float would be off in its last digits."""
    whole, fraction = divmod(micro_usd, 1_000_000)
    return orjson.Fragment(f"{whole}.{fraction:06d}".rstrip("0").rstrip("."))


def _location(location: ModelLocation) -> dict[str, Any]:
    found = asdict(location)
    if not location.stages:
        for name in ("stages", "predicted_tokens_per_s", "tokens_per_s"):
            del found[name]
    return found


def openai_model(card: ModelCard, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": card.created_unix_s,
        "owned_by": "helexa",
        "max_model_len": card.context_tokens,
        "max_input_tokens": None if card.limit is None else card.limit.input,
        "max_output_tokens": None if card.limit is None else card.limit.output,
        **_own_fields(card, name),
        "capabilities": card.named_capabilities,
    }


def openai_model_list(cards: Sequence[ModelCard]) -> bytes:
    data = [openai_model(card, name) for card in cards for name in card.names]
    return orjson.dumps({"object": "list", "data": data})


DEFAULT_LIMIT = 20
MAX_LIMIT = 1000
EFFORTS = ("low", "medium", "high", "xhigh", "max")
THINKING_TYPES = ("adaptive", "enabled", "disabled")
CONTEXT_EDITS = ("clear_thinking_20251015", "clear_tool_uses_20250919", "compact_20260112")

_YES, _NO = {"supported": True}, {"supported": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    limit: int = DEFAULT_LIMIT
    after_id: str | None = None
    before_id: str | None = None


def parse_page(query: Mapping[str, str]) -> PageRequest:
    after_id, before_id = query.get("after_id"), query.get("before_id")
    if after_id is not None and before_id is not None:
        raise InvalidRequestError("Give 'after_id' or 'before_id', not both.", param="after_id")
    limit = page_limit(query, DEFAULT_LIMIT, MAX_LIMIT)
    return PageRequest(limit=limit, after_id=after_id, before_id=before_id)


def anthropic_model_list(cards: Sequence[ModelCard], page: PageRequest) -> bytes:
    """Raises ``InvalidRequestError`` for a page beside an id that is not in the list."""
    entries = [(card, name) for card in cards for name in card.names]
    start, end, has_more = _page([name for _, name in entries], page)
    data = [anthropic_model(card, name) for card, name in entries[start:end]]
    return orjson.dumps({**page_of(data, page.limit), "has_more": has_more})


def anthropic_model(card: ModelCard, name: str) -> dict[str, Any]:
    return {
        "type": "model",
        "id": name,
        "display_name": name if name == card.id else f"{name} ({card.id})",
        "created_at": card.created_at,
        "lifecycle": "active",
        "line": None,
        "deprecated_at": None,
        "retires_at": None,
        "max_input_tokens": None if card.limit is None else card.limit.input,
        "max_tokens": None if card.limit is None else card.limit.output,
        "capabilities": None if card.capabilities is None else _capabilities(card),
        **_own_fields(card, name),
    }


def _page(names: list[str], page: PageRequest) -> tuple[int, int, bool]:
    if page.before_id is not None:
        end = _position(names, page.before_id, "before_id")
        start = max(0, end - page.limit)
        return start, end, start > 0
    start = 0 if page.after_id is None else _position(names, page.after_id, "after_id") + 1
    end = min(len(names), start + page.limit)
    return start, end, end < len(names)


def _position(names: list[str], name: str, param: str) -> int:
    if name not in names:
        raise InvalidRequestError(f"'{param}' is no model of this list.", param=param)
    return names.index(name)


def _capabilities(card: ModelCard) -> dict[str, Any]:
    thinks = {"supported": bool(card.can("reasoning"))}
    return {
        "batch": _NO,
        "citations": _NO,
        "code_execution": _NO,
        "context_management": {**_NO, **dict.fromkeys(CONTEXT_EDITS, _NO)},
        "effort": {**thinks, **dict.fromkeys(EFFORTS, thinks)},
        "image_input": {"supported": bool(card.can("vision"))},
        "pdf_input": _NO,
        "server_tools": {**_NO, "code_execution": _NO, "web_search": _NO},
        "structured_outputs": {"supported": bool(card.can("structured_output"))},
        "thinking": {
            **thinks,
            "types": {
                **dict.fromkeys(THINKING_TYPES, _YES),
                "between_tools": _NO,
            },
        },
    }
