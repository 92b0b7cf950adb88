"""One gateway for tests in a browser, over a seeded database; a hub stands for Hugging Face."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from django.db.models import Model

from tests.fleet.hub.conftest import running_hub
from tests.live.fleets.fleet import DATABASE, Fleet, running_fleet

BUSY_TIMEOUT_S = 30.0


@contextmanager
def running_pages(directory: Path) -> Iterator[PagesServer]:
    environment = {"HELEXA_BENCH_PUBLIC": "1", "HELEXA_METRICS_LISTEN": "off"}
    with running_hub() as hub_url:
        hub = {"HF_ENDPOINT": hub_url, "HF_HUB_OFFLINE": "0"}
        with running_fleet(directory, **environment, **hub) as fleet:
            seed = "from tests.browser import seed; seed.main()"
            fleet.manage("shell", "--no-imports", "-c", seed)
            fleet.add_gateway()
            yield PagesServer(fleet)


class PagesServer:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        (self.url,) = fleet.gateway_urls
        self.command = fleet.manage

    @contextmanager
    def paused(self) -> Iterator[None]:
        gateway = self._fleet.programs["gateway-0"].process
        gateway.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            gateway.send_signal(signal.SIGCONT)

    def write(self, statement: str, *values: object) -> list[Any]:
        """Runs a statement of SQL, also one that reads."""
        database = self._fleet.run_dir / DATABASE
        with closing(sqlite3.connect(database, timeout=BUSY_TIMEOUT_S)) as connection:
            with connection:
                return connection.execute(statement, values).fetchall()

    def first_key(self, model: type[Model]) -> str:
        """Returns the key in the addresses of the row that the table has had longest: pages that
        were visited may have made others, with keys in no particular order."""
        key, table = model._meta.pk, model._meta.db_table
        rows = self.write(f"SELECT {key.column} FROM {table} ORDER BY rowid LIMIT 1")
        assert rows, f"tests/browser/seed.py makes no {model.__name__}"
        return str(rows[0][0])
