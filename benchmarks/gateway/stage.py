"""A gateway's private environment: Redis, a database, a key, and a neuron without a model.
Everything is under one temporary folder and ends with the ``with``."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from benchmarks.ports import HOST, free_port
from helexa_site.bootstrap.guardian import Guardian
from helexa_site.bootstrap.redis_server import (
    configure_private_redis,
    discard_private_redis,
    wait_for_redis,
)
from helexa_site.program import REPOSITORY_DIR

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 15.0
LOG_TAIL_CHARACTERS = 2000


class ProcessFailedError(Exception):
    """The end of the process's log is in the message."""


class RunningProcess:
    """``port`` 0: none."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path, port: int) -> None:
        self.name = name
        self.port = port
        self.pid = process.pid
        self._process = process
        self._log = log

    def wait_until_listening(self) -> None:
        give_up_s = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                socket.create_connection((HOST, self.port), timeout=1).close()
                return
            except OSError:
                self.check()
                if time.monotonic() > give_up_s:
                    raise self._failed("does not listen") from None
                time.sleep(0.05)

    def check(self) -> None:
        if (code := self._process.poll()) is not None:
            raise self._failed(f"ended with exit code {code}")

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def _failed(self, what: str) -> ProcessFailedError:
        return ProcessFailedError(f"{self.name} {what}:\n{self.log()[-LOG_TAIL_CHARACTERS:]}")


class Processes:
    """Ends the last one first. ``folder`` gets a log of each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[RunningProcess] = []
        self._guardian = Guardian()

    def start(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        port: int = 0,
        folder: Path = REPOSITORY_DIR,
    ) -> RunningProcess:
        """``folder``: the working directory. With a ``port``, returns it listening. Raises
        ``ProcessFailedError``."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._guardian.watch(process.pid)
        running = RunningProcess(name, process, log, port)
        self._running.append(running)
        if port:
            running.wait_until_listening()
        return running

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for running in reversed(self._running):
            running.stop()
            self._guardian.release(running.pid)
        self._guardian.close()


MODEL = "smollm2-135m-instruct"
UPSTREAM_MODEL = "far"
ACCOUNT = "bench"
CAP_TOKENS = 10**15
"""The benchmark measures counting, not refusing."""
PREPARE = f"""
import sys
import django; django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
call_command("ensure_default_model", stdout=sys.stderr)
call_command("accounts", "create", "{ACCOUNT}", stdout=sys.stderr)
call_command("keys", "create", "{ACCOUNT}", "--cap-tokens", "{CAP_TOKENS}", "--json")
"""
"""The account's key has a cap, so that budgets are in use."""


class Stage:
    def __init__(
        self, processes: Processes, env: dict[str, str], authorization: str, checkout: Path
    ) -> None:
        self.processes = processes
        self.authorization = authorization
        self._env = env
        self._checkout = checkout

    def offer_upstream(self, port: int) -> None:
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
        port, checkout = free_port(), self._checkout
        env = self._env | {"HELEXA_METRICS_LISTEN": f"{HOST}:{free_port()}"}
        name = kind if checkout == REPOSITORY_DIR else f"{kind} of {checkout.name}"
        command = _command(kind, port, checkout)
        return self.processes.start(name, command, env, port=port, folder=checkout)


@contextmanager
def stage(checkout: Path = REPOSITORY_DIR, *, database_url: str | None = None) -> Iterator[Stage]:
    """``database_url`` ``None``: SQLite in the stage's folder."""
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
