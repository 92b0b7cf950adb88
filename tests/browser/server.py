"""One gateway for tests in a browser: Daphne over a seeded database, with a Redis of its own."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
from django.db.models import Model

from benchmarks.ports import free_port
from tests.fleet.hub.conftest import running_hub
from tests.live.fleets.fleet import MANAGE, Program
from tests.live.serving import READY_TIMEOUT_S, REPOSITORY_DIR, wait_until
from tests.servers.private_redis import running_redis

BUSY_TIMEOUT_S = 30.0


@contextmanager
def running_pages(directory: Path) -> Iterator[PagesServer]:
    with (
        running_redis(directory) as redis_url,
        running_hub() as hub_url,
        PagesServer(directory, redis_url, hub_url) as server,
    ):
        yield server


class PagesServer:
    """``directory`` holds its database and its log; ``hub_url`` stands for Hugging Face."""

    def __init__(self, directory: Path, redis_url: str, hub_url: str) -> None:
        self._database = directory / "pages.sqlite3"
        self._directory = directory
        self._environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": "helexa_site.settings",
            "DATABASE_URL": f"sqlite:///{self._database}",
            "REDIS_URL": redis_url,
            "HELEXA_DATA_DIR": str(directory),
            "HELEXA_SECRET_KEY": "of tests in a browser alone, and no secret",
            "HELEXA_METRICS_LISTEN": "off",
            "HELEXA_BENCH_PUBLIC": "1",
            "HF_ENDPOINT": hub_url,
            "HF_HUB_OFFLINE": "0",
            "PYTHONPATH": str(REPOSITORY_DIR),
        }
        self.command("shell", "--no-imports", "-c", "from tests.browser import seed; seed.main()")
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._gateway.end()

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._gateway.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._gateway.process.send_signal(signal.SIGCONT)

    def write(self, statement: str, *values: object) -> list[Any]:
        """Runs a statement of SQL, also one that reads."""
        with closing(sqlite3.connect(self._database, timeout=BUSY_TIMEOUT_S)) as connection:
            with connection:
                return connection.execute(statement, values).fetchall()

    def first_key(self, model: type[Model]) -> str:
        """Returns the key in the addresses of the row that the table has had longest: pages that
        were visited may have made others, with keys in no particular order."""
        key, table = model._meta.pk, model._meta.db_table
        rows = self.write(f"SELECT {key.column} FROM {table} ORDER BY rowid LIMIT 1")
        assert rows, f"tests/browser/seed.py makes no {model.__name__}"
        return str(rows[0][0])

    def command(self, *arguments: str) -> str:
        done = subprocess.run(
            [*MANAGE, *arguments],
            cwd=REPOSITORY_DIR,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=READY_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _start(self) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [*MANAGE, "gateway", "--host", "127.0.0.1", "--port", str(port)]
        self._gateway = Program("gateway", command, self._environment, self._directory)
        try:
            wait_until(self._answers, f"{self.url} answers", READY_TIMEOUT_S)
        except BaseException:
            self._gateway.end()
            raise

    def _answers(self) -> bool:
        assert self._gateway.process.poll() is None, self._gateway.log_tail()
        return httpx.get(f"{self.url}/login/", timeout=30.0).status_code == 200
