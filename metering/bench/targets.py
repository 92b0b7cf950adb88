"""Targets: probe them, check whether they are busy, load and unload their models.

NeuronTarget     /version, /discovery, /models, /health of the original's neuron, at its own
                 port or under /api/neurons/NAME of a gateway, and what answers its models
EndpointTarget   /v1/models, and a path with its version
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from django.core.management.base import CommandError

from fleet.management.backend import LocalBackend
from inference.settings.storage import BENCH_VARIABLES
from metering.bench import probing
from metering.bench.client import Asker, Http, HttpAsker, key_headers
from metering.bench.errors import BenchError, SampleFailedError, TargetUnreachableError
from metering.bench.models import BenchTarget
from metering.bench.probing import BuildInfo, HostInfo, ModelInfo, Probed, Telemetry

VERSION_PATHS = ("version", "api/version", "props")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpec:
    row: BenchTarget
    """May be unsaved."""
    api_key: str | None = field(default=None, repr=False)
    is_local: bool = False
    """A neuron of this fleet that is called in this process, not through the REST API."""


class Target(Protocol):
    def probe(self) -> Probed:
        """Raises ``TargetUnreachableError``."""
        ...

    def asker(self, model: ModelInfo) -> Asker:
        """Raises ``TargetUnreachableError`` where its requests would not be measured here."""
        ...

    def is_busy(self) -> bool: ...

    def telemetry(self, model: ModelInfo) -> Telemetry: ...

    def load(self, model: ModelInfo) -> float:
        """Returns the seconds it took. Raises ``SampleFailedError``."""
        ...

    def unload(self, model: ModelInfo) -> float:
        """Returns the seconds it took. Raises ``SampleFailedError``."""
        ...


class LocalDoor:
    """The REST API's views in this process, as ``manage.py neurons`` calls them: no key is needed,
    because the caller has the database."""

    def __init__(self, name: str) -> None:
        self._path = f"neurons/{name}"
        self._backend = LocalBackend()

    def get(self, path: str) -> Any:
        try:
            return self._backend.ask("GET", f"{self._path}/{path}")
        except CommandError as error:
            raise TargetUnreachableError(f"{self._path}/{path}: {error}") from error

    def post(self, path: str, body: Any) -> Any:
        try:
            return self._backend.ask("POST", f"{self._path}/{path}", body)
        except CommandError as error:
            raise SampleFailedError(str(error)) from error


class NeuronTarget:
    def __init__(self, spec: TargetSpec, http: Http) -> None:
        self._is_local = spec.is_local
        self._row = spec.row
        self._http = http
        self._door = LocalDoor(self._row.name) if spec.is_local else http

    def probe(self) -> Probed:
        build = probing.neuron_build(self._object("version"))
        if self._row.build:
            build = BuildInfo(build=self._row.build, package_version=build.package_version)
        return Probed(
            build=build,
            host=probing.neuron_host(self._object("discovery")),
            models=probing.neuron_models(self._door.get("models")),
        )

    def asker(self, model: ModelInfo) -> Asker:
        base_url = self._row.endpoint
        if not self._is_local:
            found = self._door.get(f"models/{quote(model.id, safe='')}/endpoint")
            base_url = str(found.get("url") if isinstance(found, dict) else "")
            base_url = _reachable(base_url, self._row.endpoint)
        server = self._http.at(_root(base_url))
        card = None
        with contextlib.suppress(TargetUnreachableError):  # the original's neuron has no list
            card = server.get(f"v1/models/{quote(model.id, safe='')}")
        if others := probing.other_places(card, self._neuron_name()):
            raise TargetUnreachableError(
                f"{model.id} is also loaded on {', '.join(others)}, and the gateway chooses"
            )
        return HttpAsker(server)

    def is_busy(self) -> bool:
        return probing.is_busy(self._object("health"))

    def telemetry(self, model: ModelInfo) -> Telemetry:
        try:
            return probing.telemetry_of(self._object("health"), model)
        except BenchError:
            return Telemetry()

    def load(self, model: ModelInfo) -> float:
        return self._timed("models/load", {"model_id": model.id, "harness": model.harness})

    def unload(self, model: ModelInfo) -> float:
        return self._timed("models/unload", {"model_id": model.id})

    def _timed(self, path: str, body: dict[str, Any]) -> float:
        started_s = time.perf_counter()
        self._door.post(path, body)
        return time.perf_counter() - started_s

    def _neuron_name(self) -> str:
        row = self._row
        return row.name if self._is_local else row.endpoint.rstrip("/").rpartition("/")[2]

    def _object(self, path: str) -> dict[str, Any]:
        found = self._door.get(path)
        if not isinstance(found, dict):
            raise TargetUnreachableError(f"{self._row.endpoint}/{path} is no JSON object")
        return found


class EndpointTarget:
    """Any server of OpenAI's or Anthropic's API. It cannot report whether it is busy."""

    def __init__(self, spec: TargetSpec, http: Http) -> None:
        self._row = spec.row
        self._http = http.at(_root(self._row.endpoint))

    def probe(self) -> Probed:
        if self._row.only_models and self._row.build:
            models = tuple(ModelInfo(id=name) for name in self._row.only_models)
        else:
            models = probing.listed_models(self._http.get("v1/models"))
        return Probed(
            build=self._build(),
            host=HostInfo(hostname=self._row.hostname, gpus=tuple(self._row.gpus)),
            models=models,
        )

    def asker(self, model: ModelInfo) -> Asker:
        return HttpAsker(self._http, self._row.kind)

    def is_busy(self) -> bool:
        return False

    def telemetry(self, model: ModelInfo) -> Telemetry:
        return Telemetry()

    def load(self, model: ModelInfo) -> float:
        raise SampleFailedError("only neurons load and unload on demand")

    unload = load

    def _build(self) -> BuildInfo:
        if self._row.build:
            return BuildInfo(build=self._row.build)
        for path in VERSION_PATHS:
            try:
                version = self._http.get(path)
            except TargetUnreachableError:
                continue
            if build := probing.build_of_version(version):
                return BuildInfo(
                    build=build,
                    package_version=build,
                    build_timestamp=probing.moment_of(version.get("build_timestamp")),
                )
        return BuildInfo(build=probing.EXTERNAL)


def open_target(spec: TargetSpec, timeout_s: float) -> Target:
    """Raises ``TargetUnreachableError`` where its key is missing."""
    variable, kind = spec.row.api_key_env, spec.row.kind
    if variable and not spec.api_key:
        raise TargetUnreachableError(
            f"the variable {variable}, which is to hold its key, is not set where the "
            f"sweep runs (`serve` hands the control those that {BENCH_VARIABLES.name} names)"
        )
    http = Http(spec.row.endpoint, headers=key_headers(kind, spec.api_key), timeout_s=timeout_s)
    return NeuronTarget(spec, http) if kind == "neuron" else EndpointTarget(spec, http)


def _root(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


def _reachable(url: str, endpoint: str) -> str:
    """A neuron that answers ``localhost`` means its own host."""
    given, asked = urlsplit(url), urlsplit(endpoint)
    if given.hostname in ("localhost", "127.0.0.1", "0.0.0.0", "::1") and asked.hostname:
        host = f"[{asked.hostname}]" if ":" in asked.hostname else asked.hostname
        port = f":{given.port}" if given.port else ""
        return f"{given.scheme}://{host}{port}{given.path}".rstrip("/")
    return url.rstrip("/")
