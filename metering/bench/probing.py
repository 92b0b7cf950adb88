"""Reads the targets' descriptions of themselves: columns of a run, and models. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Columns = dict[str, Any]
UNKNOWN = "unknown"
EXTERNAL = "external"
"""The build of an endpoint that reports none."""
NO_SETTINGS = frozenset(
    {"id", "object", "created", "created_at", "harness", "status", "capabilities", "devices"}
    | {"vram_used_mb", "loaded", "locations", "feasible_on", "cost", "description", "progress"}
)
"""The keys of a model's object that are no settings of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    id: str
    harness: str = ""
    capabilities: frozenset[str] = frozenset()
    """Empty: none reported."""
    context_tokens: int | None = None
    devices: tuple[int, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Other settings that the server reports."""


def neuron_build(version: Mapping[str, Any]) -> Columns:
    """A dirty tree is a build of its own: it looks like any other dirty tree of the commit, but it
    is not the commit."""
    sha, package = _text(version, "git_sha"), _text(version, "package_version")
    is_dirty = version.get("git_dirty") is True
    sha = "" if sha == UNKNOWN else sha
    build = f"{sha}-dirty" if sha and is_dirty else sha or package or UNKNOWN
    return {
        "build": build[:100],
        "git_sha": sha[:40],
        "git_sha_long": _text(version, "git_sha_long")[:64],
        "git_dirty": is_dirty,
        "package_version": package[:100],
        "build_timestamp": moment_of(version.get("build_timestamp")),
        "features": list(map(str, version.get("features") or ())),
    }


def neuron_host(discovery: Mapping[str, Any]) -> Columns:
    return {
        "hostname": _text(discovery, "hostname")[:200],
        "driver_version": _text(discovery, "driver_version")[:100],
        "cuda_version": _text(discovery, "cuda_version")[:100],
        "gpus": [str(device.get("name", "")) for device in _objects(discovery.get("devices"))],
    }


def neuron_models(models: Any) -> list[ModelInfo]:
    entries = _objects(models)
    return [_model(entry) for entry in entries if entry.get("status", "loaded") == "loaded"]


def listed_models(json_value: Any) -> list[ModelInfo]:
    """The models of ``/v1/models``, in any dialect. Left out are models with ``loaded: false``, and
    helexa's aliases; before 0.3.0 it listed an alias among its own aliases."""
    return [
        _model(entry)
        for entry in _objects(json_value.get("data") if isinstance(json_value, dict) else None)
        if entry.get("loaded", True) is not False
        and "alias_of" not in entry
        and entry.get("id") not in _list(entry.get("aliases"))
    ]


def build_of_version(version: Any) -> str:
    """The build in the answers of vLLM, SGLang and Ollama at ``/version`` and ``/api/version``, and
    of llama.cpp at ``/props``."""
    if not isinstance(version, dict):
        return ""
    names = ("git_sha", "build_info", "version", "package_version")
    words = (_text(version, name) for name in names)
    return next((word[:100] for word in words if word and word != UNKNOWN), "")


def is_busy(health: Mapping[str, Any]) -> bool:
    return any(
        (load.get("in_flight") or 0) + (load.get("queue_depth") or 0) > 0
        for load in _objects(health.get("models"))
    )


def telemetry_of(health: Mapping[str, Any], model: ModelInfo) -> Columns:
    """All memory, the busiest and the hottest of the model's cards."""
    cards = [
        card
        for card in _objects(health.get("devices"))
        if not model.devices or card.get("index") in model.devices
    ]

    def readings(name: str) -> list[int]:
        return [card[name] for card in cards if type(card.get(name)) is int]

    used = readings("vram_used_mb")
    return {
        "vram_used_mb": sum(used) if used else None,
        "gpu_util_pct": max(readings("utilization_pct"), default=None),
        "gpu_temp_c": max(readings("temp_c"), default=None),
    }


def other_places(card: Any, neuron: str) -> list[str]:
    """The other neurons that serve the model, as the gateway reports in either of its shapes."""
    places = (card.get("locations") if isinstance(card, dict) else None) or ()
    objects = [place if isinstance(place, dict) else {"node": str(place)} for place in places]
    names = {one.get("node", "") for one in objects if one.get("status", "loaded") == "loaded"}
    return sorted(names - {"", neuron})


def moment_of(value: Any) -> datetime | None:
    """ISO 8601, or seconds since 1970; without a zone it is UTC."""
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if type(value) in (int, float):
        return datetime.fromtimestamp(value, UTC)
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _model(entry: Mapping[str, Any]) -> ModelInfo:
    limit = entry.get("limit")
    contexts = (
        limit.get("context") if isinstance(limit, dict) else None,
        entry.get("max_model_len"),
    )
    return ModelInfo(
        id=str(entry.get("id", ""))[:200],
        harness=_text(entry, "harness")[:40],
        capabilities=frozenset(map(str, _list(entry.get("capabilities")))),
        context_tokens=next((one for one in contexts if type(one) is int and one > 0), None),
        devices=tuple(one for one in _list(entry.get("devices")) if type(one) is int),
        settings={name: value for name, value in entry.items() if name not in NO_SETTINGS},
    )


def _objects(json_value: Any) -> list[Mapping[str, Any]]:
    return [one for one in _list(json_value) if isinstance(one, dict)]


def _list(json_value: Any) -> list[Any]:
    """Any other value counts as an empty list."""
    return json_value if isinstance(json_value, list) else []


def _text(json_value: Mapping[str, Any], name: str) -> str:
    value = json_value.get(name)
    return value.strip() if isinstance(value, str) else ""
