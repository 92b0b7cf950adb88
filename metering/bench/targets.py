"""Targets: probe them, check whether they are busy, load and unload their models.

Target           /v1/models of any server, and a path with its version
NeuronTarget     /version, /discovery, /models, /health of the original's neuron, at its own
                 port or under /api/neurons/NAME of a gateway, and what answers its models
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

from django.core.management.base import CommandError

from fleet.management.backend import LocalBackend
from inference.settings.storage import BENCH_VARIABLES
from metering.bench import probing
from metering.bench.client import Http, ask, key_headers
from metering.bench.errors import TargetError
from metering.bench.models import BenchRun, BenchTarget
from metering.bench.probing import Columns, ModelInfo

VERSION_PATHS = ("version", "api/version", "props")
Ask = Callable[[str, int], BenchRun]
"""Sends a prompt, for at most so many tokens of answer. Raises ``TargetError``."""


class Target:
    """Any server of OpenAI's or Anthropic's API. It cannot report whether it is busy. ``row`` may
    be unsaved. All methods raise ``TargetError``."""

    def __init__(self, row: BenchTarget, api_key: str | None, *, timeout_s: float) -> None:
        self.row = row
        self.api_key = api_key
        headers = key_headers(row.kind, api_key)
        self._http = Http(_root(row.endpoint), headers=headers, timeout_s=timeout_s)

    def probe(self) -> tuple[Columns, list[ModelInfo]]:
        """Returns the columns of its runs, and the models that are loaded."""
        self._ensure_key()
        if self.row.only_models and self.row.build:
            models = [ModelInfo(id=name) for name in self.row.only_models]
        else:
            models = probing.listed_models(self._http.get("v1/models"))
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
                version = self._http.get(path)
                if build := probing.build_of_version(version):
                    built_at = probing.moment_of(version.get("build_timestamp"))
                    return {"build": build, "package_version": build, "build_timestamp": built_at}
        return {"build": probing.EXTERNAL}


class NeuronTarget(Target):
    """``is_local``: a neuron of this fleet. The REST API's views are called in this process, as
    ``manage.py neurons`` calls them, without a key: the caller has the database. Its models are
    asked at the gateway."""

    def __init__(
        self, row: BenchTarget, api_key: str | None, *, timeout_s: float, is_local: bool = False
    ) -> None:
        super().__init__(row, api_key, timeout_s=timeout_s)
        self._is_local = is_local
        self._door = self._http.at(row.endpoint)

    def probe(self) -> tuple[Columns, list[ModelInfo]]:
        self._ensure_key()
        build = probing.neuron_build(self._object("version"))
        if self.row.build:
            build = {"build": self.row.build, "package_version": build["package_version"]}
        columns = {**build, **probing.neuron_host(self._object("discovery"))}
        return columns, probing.neuron_models(self._ask("models"))

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
        if others := probing.other_places(card, neuron):
            raise TargetError(
                f"{model.id} is also loaded on {', '.join(others)}, and the gateway chooses"
            )
        return partial(ask, http, self.row.kind, model.id)

    def is_busy(self) -> bool:
        return probing.is_busy(self._object("health"))

    def telemetry(self, model: ModelInfo) -> Columns:
        with contextlib.suppress(TargetError):
            return probing.telemetry_of(self._object("health"), model)
        return {}

    def load(self, model: ModelInfo) -> None:
        self._ask("models/load", {"model_id": model.id, "harness": model.harness})

    def unload(self, model: ModelInfo) -> None:
        self._ask("models/unload", {"model_id": model.id})

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """A GET, or a POST where there is a body."""
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
    if given.hostname in ("localhost", "127.0.0.1", "0.0.0.0", "::1") and asked.hostname:
        host = f"[{asked.hostname}]" if ":" in asked.hostname else asked.hostname
        port = f":{given.port}" if given.port else ""
        return f"{given.scheme}://{host}{port}{given.path}"
    return url
