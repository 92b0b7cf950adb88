"""A fleet as an operator would run it on many hosts, here on one: gateways, controls and neurons
over one Redis and one database, with scripted engines on cards that are simulated.

    Fleet ─┬▶ Program gateway-0, gateway-1 …    manage.py gateway
           ├▶ Program control-0, control-1 …    celery, one of them leads
           └▶ Program beast, mouse …            manage.py neuron, each with cards of its own
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import redis
from django.conf import settings as django_settings

from benchmarks.ports import free_port
from fleet.errors import SnapshotUnavailableError
from fleet.live.reading import read_snapshot_sync
from fleet.live.snapshot import FleetSnapshot
from inference.protocol.heartbeat import ReplicaStatus
from tests.live.scripted.model import ENGINE, ScriptedModel, make_model
from tests.live.scripted.simulated_devices import SimulatedDevices, device_environment
from tests.live.serving import (
    IMPORTS,
    MANAGE,
    REPOSITORY_DIR,
    SERVE_KEY,
    Program,
    manage,
    serve_environment,
    wait_until,
)
from tests.servers.private_redis import MortalRedis, mortal_redis

GB = 10**9
CONTROL = ("-m", "helexa_site.control")
DATABASE = "helexa.sqlite3"


class Fleet:
    def __init__(
        self, run_dir: Path, server: MortalRedis, port: int, database_url: str, **environment: str
    ) -> None:
        self.run_dir = run_dir
        self.redis, self.redis_port = server, port
        self.programs: dict[str, Program] = {}
        self.cards: dict[str, SimulatedDevices] = {}
        self.gateway_urls: list[str] = []
        self._client = redis.Redis.from_url(server.url_at(port))
        self._log_dir = run_dir / "logs"
        self._log_dir.mkdir(parents=True)
        self.environment = (
            serve_environment()
            | {
                "DATABASE_URL": database_url,
                "REDIS_URL": server.url_at(port),
                "HELEXA_DATA_DIR": str(run_dir / "var"),
                # This process reads what they sign.
                "HELEXA_SECRET_KEY": str(django_settings.SECRET_KEY),
                "PYTHONPATH": str(REPOSITORY_DIR),
            }
            | environment
        )
        self.manage("migrate", "--verbosity", "0")

    def manage(self, *words: str) -> str:
        return manage(self.environment, *words)

    def add_gateway(self) -> None:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        self._add(f"gateway-{len(self.gateway_urls)}", [*MANAGE, "gateway", "--port", str(port)])
        self.gateway_urls.append(url)
        wait_until(lambda: httpx.get(f"{url}/health", timeout=30.0).content, f"{url} answers")

    def add_control(self) -> None:
        name = f"control-{sum(name.startswith('control-') for name in self.programs)}"
        self._add(name, [sys.executable, *CONTROL, "--hostname", f"{name}@%h"])

    def add_neuron(self, name: str, *cards_bytes: int, join: str = "") -> None:
        """With scripted engines. Without a line to join by it gets its name and this Redis."""
        described = self.run_dir / f"{name}.json"
        described.write_text(json.dumps(cards_bytes))
        self.cards[name] = SimulatedDevices(described)
        settings = device_environment(described) | {
            "HELEXA_ENGINE_COMMAND": shlex.join([sys.executable, str(ENGINE)]),
            "HELEXA_DATA_DIR": str(self.run_dir / name),
        }
        who = ("--join", join) if join else ("--name", name)
        self._add(name, [*MANAGE, "neuron", *who], **settings)

    def add_real_neuron(self, name: str, data_dir: Path, **environment: str) -> None:
        settings = {"HELEXA_DATA_DIR": str(data_dir), "HELEXA_DEVICE": "cpu"} | environment
        self._add(name, [*MANAGE, "neuron", "--name", name], **settings)

    def add_models(self, sizes_bytes: Mapping[str, int], *, pinned: str) -> list[ScriptedModel]:
        """Adds models to the catalogue, each with a script of its own and so many bytes on its
        card."""
        models, lines = [], []
        for name, size_bytes in sizes_bytes.items():
            model = make_model(name, self.run_dir / name)
            model.takes(size_bytes)
            models.append(model)
            lines.append(
                f"services.catalogue_model_create(actor=COMMAND, name={name!r}, "
                f"source='path:{model.folder}', pinned={name == pinned})"
            )
        self.shell(*lines)
        return models

    def invite(self, name: str, address: str) -> str:
        found_json = self.manage("neurons", "invite", name, "--address", address, "--json")
        line: str = json.loads(found_json)["join"]
        return line

    def shell(self, *lines: str) -> None:
        self.manage("shell", "-v", "0", "-c", IMPORTS + "\n".join(lines))

    def snapshot(self) -> FleetSnapshot:
        """Returns the snapshot of the neurons' heartbeats; empty while Redis does not answer."""
        try:
            return read_snapshot_sync(self._client)
        except SnapshotUnavailableError:
            return FleetSnapshot(neurons=())

    def ready(self, model: str) -> list[str]:
        replicas = self.snapshot().replicas_of(model)
        return [one.neuron for one in replicas if one.status is ReplicaStatus.READY]

    def wait(self, is_done: Callable[[], Any], what: str) -> Any:
        """``wait_until``, which describes the fleet where it fails."""
        try:
            return wait_until(is_done, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.describe()}") from None

    def describe(self) -> str:
        headers = {"Authorization": f"Bearer {SERVE_KEY}"}
        try:
            health = httpx.get(f"{self.gateway_urls[0]}/health", headers=headers, timeout=30.0).text
        except httpx.HTTPError as error:
            health = f"no answer: {error}"
        return "\n".join([health, *(program.log_tail() for program in self.programs.values())])

    def end(self) -> None:
        """Gateways first, so that neurons have no request to answer."""
        for program in sorted(self.programs.values(), key=lambda one: "gateway" not in one.name):
            program.process.terminate()
        for program in self.programs.values():
            program.end()
        self._client.close()

    def _add(self, name: str, command: Sequence[str], **settings: str) -> None:
        environment = self.environment | settings
        self.programs[name] = Program(name, command, environment, self._log_dir)


@contextmanager
def running_fleet(run_dir: Path, database_url: str = "", **environment: str) -> Iterator[Fleet]:
    """One without programs yet, on a Redis of its own; without a URL on SQLite. Everything that is
    added ends with it."""
    port = free_port()
    database_url = database_url or f"sqlite:///{run_dir / DATABASE}"
    with mortal_redis(run_dir / "redis", port=port) as server:
        fleet = Fleet(run_dir, server, port, database_url, **environment)
        try:
            yield fleet
        finally:
            fleet.end()
