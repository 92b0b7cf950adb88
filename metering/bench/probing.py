"""Reads the targets' descriptions of themselves into frozen values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

UNKNOWN = "unknown"
EXTERNAL = "external"
"""The build of an endpoint that reports none."""
MAX_BUILD_CHARACTERS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildInfo:
    """Like ``HostInfo`` and ``Telemetry``, columns of a run."""

    build: str
    """Groups cells."""
    git_sha: str = ""
    git_sha_long: str = ""
    git_dirty: bool = False
    package_version: str = ""
    build_timestamp: datetime | None = None
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostInfo:
    hostname: str = ""
    driver_version: str = ""
    cuda_version: str = ""
    gpus: tuple[str, ...] = ()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    vram_used_mb: int | None = None
    gpu_util_pct: int | None = None
    gpu_temp_c: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    build: BuildInfo
    host: HostInfo
    models: tuple[ModelInfo, ...]


def neuron_build(version: Mapping[str, Any]) -> BuildInfo:
    """A dirty tree is a build of its own: it looks like any other dirty tree of the commit, but it
    is not the commit."""
    sha, package = _text(version, "git_sha"), _text(version, "package_version")
    is_dirty = version.get("git_dirty") is True
    sha = "" if sha == UNKNOWN else sha
    build = f"{sha}-dirty" if sha and is_dirty else sha or package or UNKNOWN
    return BuildInfo(
        build=build[:MAX_BUILD_CHARACTERS],
        git_sha=sha[:40],
        git_sha_long=_text(version, "git_sha_long")[:64],
        git_dirty=is_dirty,
        package_version=package[:100],
        build_timestamp=moment_of(version.get("build_timestamp")),
        features=tuple(map(str, version.get("features") or ())),
    )


def neuron_host(discovery: Mapping[str, Any]) -> HostInfo:
    return HostInfo(
        hostname=_text(discovery, "hostname")[:200],
        driver_version=_text(discovery, "driver_version")[:100],
        cuda_version=_text(discovery, "cuda_version")[:100],
        gpus=tuple(str(device.get("name", "")) for device in _objects(discovery.get("devices"))),
    )


def neuron_models(models: Any) -> tuple[ModelInfo, ...]:
    entries = _objects(models)
    return tuple(_model(entry) for entry in entries if entry.get("status", "loaded") == "loaded")


def listed_models(json_value: Any) -> tuple[ModelInfo, ...]:
    """The models of ``/v1/models``, in any dialect. Left out are models with ``loaded: false``, and
    helexa's aliases."""
    entries = _objects(json_value.get("data") if isinstance(json_value, dict) else None)
    loaded = (entry for entry in entries if entry.get("loaded", True) is not False)
    return tuple(_model(entry) for entry in loaded if not _is_alias(entry))


def _is_alias(entry: Mapping[str, Any]) -> bool:
    """Helexa before 0.3.0 listed an alias among its own aliases."""
    return "alias_of" in entry or entry.get("id") in _list(entry.get("aliases"))


def build_of_version(version: Any) -> str:
    """The build in the answers of vLLM, SGLang and Ollama at ``/version`` and ``/api/version``, and
    of llama.cpp at ``/props``."""
    if not isinstance(version, dict):
        return ""
    for name in ("git_sha", "build_info", "version", "package_version"):
        word = _text(version, name)
        if word and word != UNKNOWN:
            return word[:MAX_BUILD_CHARACTERS]
    return ""


def is_busy(health: Mapping[str, Any]) -> bool:
    return any(
        (load.get("in_flight") or 0) + (load.get("queue_depth") or 0) > 0
        for load in _objects(health.get("models"))
    )


def telemetry_of(health: Mapping[str, Any], model: ModelInfo) -> Telemetry:
    """All memory, the busiest and the hottest of the model's cards."""
    cards = [
        card
        for card in _objects(health.get("devices"))
        if not model.devices or card.get("index") in model.devices
    ]

    def readings(name: str) -> list[int]:
        return [card[name] for card in cards if type(card.get(name)) is int]

    used = readings("vram_used_mb")
    return Telemetry(
        vram_used_mb=sum(used) if used else None,
        gpu_util_pct=max(readings("utilization_pct"), default=None),
        gpu_temp_c=max(readings("temp_c"), default=None),
    )


def other_places(card: Any, neuron: str) -> list[str]:
    """The other neurons that serve the model, as the gateway reports in either of its shapes."""
    places = (card.get("locations") if isinstance(card, dict) else None) or ()
    objects = [place if isinstance(place, dict) else {"node": str(place)} for place in places]
    names = {one.get("node", "") for one in objects if one.get("status", "loaded") == "loaded"}
    return sorted(names - {"", neuron})


def moment_of(value: Any) -> datetime | None:
    """ISO 8601, or seconds since 1970; without a zone it is UTC."""
    if type(value) in (int, float):
        return datetime.fromtimestamp(value, UTC)
    if not isinstance(value, str) or not value:
        return None
    if value.isdigit():
        return datetime.fromtimestamp(int(value), UTC)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


KNOWN = frozenset(
    {"id", "object", "created", "created_at", "harness", "status", "capabilities", "devices"}
    | {"vram_used_mb", "loaded", "locations", "feasible_on", "cost", "description", "progress"}
)
"""The keys of a model's object that are no settings of it."""


def _model(entry: Mapping[str, Any]) -> ModelInfo:
    return ModelInfo(
        id=str(entry.get("id", ""))[:200],
        harness=_text(entry, "harness")[:40],
        capabilities=frozenset(map(str, _list(entry.get("capabilities")))),
        context_tokens=_context(entry),
        devices=tuple(one for one in _list(entry.get("devices")) if type(one) is int),
        settings={name: value for name, value in entry.items() if name not in KNOWN},
    )


def _objects(json_value: Any) -> list[Mapping[str, Any]]:
    return [one for one in _list(json_value) if isinstance(one, dict)]


def _list(json_value: Any) -> list[Any]:
    """Any other value counts as an empty list."""
    return json_value if isinstance(json_value, list) else []


def _context(entry: Mapping[str, Any]) -> int | None:
    limit = entry.get("limit") if isinstance(entry.get("limit"), dict) else {}
    for value in ((limit or {}).get("context"), entry.get("max_model_len")):
        if type(value) is int and value > 0:
            return value
    return None


def _text(json_value: Mapping[str, Any], name: str) -> str:
    value = json_value.get(name)
    return value.strip() if isinstance(value, str) else ""
