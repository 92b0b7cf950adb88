"""Targets: any server of OpenAI's or Anthropic's API, and neurons of helexa or of the original, at
their own port or under ``/api/neurons/NAME`` of a gateway."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

from django.core.management.base import CommandError

from fleet.management.backend import LocalBackend
from inference.settings.storage import BENCH_VARIABLES
from metering.bench.client import Http, ask, key_headers
from metering.bench.models import BenchRun, BenchTarget
from metering.errors import TargetError

Columns = dict[str, Any]
UNKNOWN = "unknown"
EXTERNAL = "external"
"""The build of an endpoint that reports none."""
NO_SETTINGS = frozenset(
    {"id", "object", "created", "created_at", "harness", "status", "capabilities", "devices"}
    | {"vram_used_mb", "loaded", "locations", "feasible_on", "cost", "description", "progress"}
)
VERSION_PATHS = ("version", "api/version", "props")
Ask = Callable[[str, int], BenchRun]
"""Takes a prompt and the most tokens of answer. Raises ``TargetError``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    id: str
    harness: str = ""
    capabilities: frozenset[str] = frozenset()
    """Empty: none reported."""
    context_tokens: int | None = None
    devices: tuple[int, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


class Target:
    """It cannot report whether it is busy. ``row`` may be unsaved. Methods raise
    ``TargetError``."""

    def __init__(self, row: BenchTarget, api_key: str | None, *, timeout_s: float) -> None:
        self.row = row
        self.api_key = api_key
        headers = key_headers(row.kind, api_key)
        self._http = Http(_root(row.endpoint), headers=headers, timeout_s=timeout_s)

    def probe(self) -> tuple[Columns, list[ModelInfo]]:
        self._ensure_key()
        if self.row.only_models and self.row.build:
            models = [ModelInfo(id=name) for name in self.row.only_models]
        else:
            models = listed_models(self._http.get("v1/models"))
        return {**self._build(), "gpus": self.row.gpus}, models

    def asker(self, model: ModelInfo) -> Ask:
        """Raises ``TargetError`` where the model's requests would not be measured here."""
        return partial(ask, self._http, self.row.kind, model.id)

    def is_busy(self) -> bool:
        return False

    def telemetry(self, model: ModelInfo) -> Columns:
        return {}

    def load(self, model: ModelInfo) -> None:
        raise TargetError("only neurons load and unload on demand")

    unload = load

    def _ensure_key(self) -> None:
        if self.row.api_key_env and not self.api_key:
            raise TargetError(
                f"the variable {self.row.api_key_env}, which is to hold its key, is not set where "
                f"the sweep runs (`serve` hands the control those that {BENCH_VARIABLES.name} "
                "names)"
            )

    def _build(self) -> Columns:
        if self.row.build:
            return {"build": self.row.build}
        for path in VERSION_PATHS:
            with contextlib.suppress(TargetError):
                build = build_of(self._http.get(path))
                if build["build"] != UNKNOWN:
                    return build
        return {"build": EXTERNAL}


class NeuronTarget(Target):
    """``is_local``: of this fleet. Views of the REST API are called in this process, without a key:
    the caller has the database. Its models answer at the gateway."""

    def __init__(
        self, row: BenchTarget, api_key: str | None, *, timeout_s: float, is_local: bool = False
    ) -> None:
        super().__init__(row, api_key, timeout_s=timeout_s)
        self._is_local = is_local
        self._door = self._http.at(row.endpoint)

    def probe(self) -> tuple[Columns, list[ModelInfo]]:
        self._ensure_key()
        build = build_of(self._object("version"))
        if self.row.build:
            build = {"build": self.row.build, "package_version": build["package_version"]}
        columns = {**build, **neuron_host(self._object("discovery"))}
        return columns, neuron_models(self._ask("models"))

    def asker(self, model: ModelInfo) -> Ask:
        http, neuron, name = self._http, self.row.name, quote(model.id, safe="")
        if not self._is_local:
            found = self._ask(f"models/{name}/endpoint")
            url = str(found.get("url") if isinstance(found, dict) else "")
            http = http.at(_root(_reachable(url, self.row.endpoint)))
            neuron = self.row.endpoint.rstrip("/").rpartition("/")[2]
        card = None
        with contextlib.suppress(TargetError):  # the original's neuron has no list
            card = http.get(f"v1/models/{name}")
        if others := other_places(card, neuron):
            raise TargetError(
                f"{model.id} is also loaded on {', '.join(others)}, and the gateway chooses"
            )
        return partial(ask, http, self.row.kind, model.id)

    def is_busy(self) -> bool:
        return has_requests(self._object("health"))

    def telemetry(self, model: ModelInfo) -> Columns:
        with contextlib.suppress(TargetError):
            return telemetry_of(self._object("health"), model)
        return {}

    def load(self, model: ModelInfo) -> None:
        self._ask("models/load", {"model_id": model.id, "harness": model.harness})

    def unload(self, model: ModelInfo) -> None:
        self._ask("models/unload", {"model_id": model.id})

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        if not self._is_local:
            return self._door.get(path) if body is None else self._door.post(path, body)
        path = f"neurons/{self.row.name}/{path}"
        try:
            return LocalBackend().ask("GET" if body is None else "POST", path, body)
        except CommandError as error:
            raise TargetError(f"{path}: {error}") from error

    def _object(self, path: str) -> dict[str, Any]:
        found = self._ask(path)
        if not isinstance(found, dict):
            raise TargetError(f"{self.row.endpoint}/{path} is no JSON object")
        return found


def _root(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


def _reachable(url: str, endpoint: str) -> str:
    """A neuron that answers ``localhost`` means its own host."""
    given, asked = urlsplit(url), urlsplit(endpoint)
    if given.hostname not in ("localhost", "127.0.0.1", "0.0.0.0", "::1") or not asked.hostname:
        return url
    host = f"[{asked.hostname}]" if ":" in asked.hostname else asked.hostname
    return given._replace(netloc=f"{host}:{given.port}" if given.port else host).geturl()


def build_of(version: Any) -> Columns:
    """``version``: as of helexa, vLLM, SGLang and Ollama, or llama.cpp's ``/props``. A dirty tree
    is a build of its own, though it looks like any other dirty tree of the commit."""
    version = version if isinstance(version, dict) else {}
    sha, package, *others = (
        "" if (word := _text(version, name)) == UNKNOWN else word
        for name in ("git_sha", "package_version", "build_info", "version")
    )
    package = package or next(filter(None, others), "")
    is_dirty = version.get("git_dirty") is True
    build = f"{sha}-dirty" if sha and is_dirty else sha or package or UNKNOWN
    return {
        "build": build[:100],
        "git_sha": sha[:40],
        "git_sha_long": _text(version, "git_sha_long")[:64],
        "git_dirty": is_dirty,
        "package_version": package[:100],
        "build_timestamp": moment_of(version.get("build_timestamp")),
        "features": list(map(str, _list(version.get("features")))),
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
    """The models of ``/v1/models``, in any dialect, without those that are not loaded and helexa's
    aliases."""
    return [
        _model(entry)
        for entry in _objects(json_value.get("data") if isinstance(json_value, dict) else None)
        if entry.get("loaded", True) is not False and "alias_of" not in entry
    ]


def has_requests(health: Mapping[str, Any]) -> bool:
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
    """``card``: the model's, in either of the gateway's shapes."""
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
    return json_value if isinstance(json_value, list) else []


def _text(json_value: Mapping[str, Any], name: str) -> str:
    value = json_value.get(name)
    return value.strip() if isinstance(value, str) else ""
