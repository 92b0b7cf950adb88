"""A gateway's real, private environment: Redis, a database, a key, and a neuron without a model.
Everything is under one temporary folder and ends with the ``with``."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.gateway.processes import HOST, Processes, RunningProcess
from benchmarks.ports import free_port
from helexa_site.bootstrap.redis_server import (
    configure_private_redis,
    discard_private_redis,
    wait_for_redis,
)
from helexa_site.program import REPOSITORY_DIR

MODEL = "smollm2-135m-instruct"
UPSTREAM_MODEL = "far"
"""The model that ``offer_upstream`` makes."""
ACCOUNT = "bench"
CAP_TOKENS = 10**15
"""More than any run uses: the benchmark measures counting, not refusing."""
PREPARE = f"""
import sys
import django; django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
call_command("ensure_default_model", stdout=sys.stderr)
call_command("accounts", "create", "{ACCOUNT}", stdout=sys.stderr)
call_command("keys", "create", "{ACCOUNT}", "--cap-tokens", "{CAP_TOKENS}", "--json")
"""
"""The database, and a new account's key with a cap, so that budgets are in use."""


class Stage:
    """``authorization`` is the clients' bearer. ``checkout`` has the code of all its processes."""

    def __init__(
        self, processes: Processes, env: dict[str, str], authorization: str, checkout: Path
    ) -> None:
        self.processes = processes
        self.authorization = authorization
        self._env = env
        self._checkout = checkout

    def offer_upstream(self, port: int) -> None:
        """Adds a model of the upstream at ``port`` to the catalogue."""
        url = f"http://{HOST}:{port}/v1"
        code = (
            "import django, sys; django.setup()\n"
            "from django.core.management import call_command\n"
            f"call_command('upstreams', 'add', 'box', '{url}', stdout=sys.stderr)\n"
            f"call_command('models', 'add', '{UPSTREAM_MODEL}', 'upstream:box/{MODEL}', "
            "stdout=sys.stderr)"
        )
        command = [sys.executable, "-c", code]
        subprocess.run(command, cwd=self._checkout, env=self._env, check=True)

    def start_gateway(self, kind: str) -> RunningProcess:
        """``kind`` is daphne or uvicorn."""
        port, checkout = free_port(), self._checkout
        env = self._env | {"HELEXA_METRICS_LISTEN": f"{HOST}:{free_port()}"}
        name = kind if checkout == REPOSITORY_DIR else f"{kind} of {checkout.name}"
        command = _command(kind, port, checkout)
        return self.processes.start_server(name, command, env, port=port, folder=checkout)


@contextmanager
def stage(checkout: Path = REPOSITORY_DIR, *, database_url: str | None = None) -> Iterator[Stage]:
    """``database_url``: ``None``: SQLite in the stage's folder."""
    with tempfile.TemporaryDirectory(prefix="helexa-bench-") as folder:
        root = Path(folder)
        server = configure_private_redis(root / "redis")
        try:
            with Processes(root) as processes:
                redis_process = processes.start("redis", server.command, os.environ)
                wait_for_redis(server.url)
                redis_process.check()
                env = _environment(root, server.url, database_url, checkout)
                authorization = _prepare(env, checkout)
                neuron = [sys.executable, "-m", "benchmarks.gateway.neuron", "--model", MODEL]
                processes.start("neuron", neuron, env, folder=checkout)
                yield Stage(processes, env, authorization, checkout)
        finally:
            discard_private_redis(server, root / "redis")


def _environment(
    root: Path, redis_url: str, database_url: str | None, checkout: Path
) -> dict[str, str]:
    env = os.environ | {
        "DJANGO_SETTINGS_MODULE": "helexa_site.settings",
        "HELEXA_DATA_DIR": str(root),
        "REDIS_URL": redis_url,
        "PYTHONPATH": str(checkout),
        "PYTHONUNBUFFERED": "1",
        "HELEXA_SECRET_KEY": secrets.token_urlsafe(48),
    }
    env.pop("DATABASE_URL", None)
    if database_url is not None:
        env["DATABASE_URL"] = database_url
    return env


def _command(kind: str, port: int, checkout: Path) -> Sequence[str]:
    if kind == "daphne":
        manage = str(checkout / "manage.py")
        return (sys.executable, manage, "gateway", "--host", HOST, "--port", str(port))
    return (
        *(sys.executable, "-m", "uvicorn", "helexa_site.asgi:application", "--host", HOST),
        *("--port", str(port), "--log-level", "warning", "--no-access-log"),
    )


def _prepare(env: dict[str, str], checkout: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PREPARE],
        cwd=checkout,
        env=env,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return f"Bearer {json.loads(done.stdout)['key']}"
