"""A fleet of 200 models and 50 hosts in the pages' server, for as long as a test looks at it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.browser.server import PagesServer

NUM_MODELS, NUM_HOSTS = 200, 50
NUMBERS = "WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?) "


@contextmanager
def large_fleet(server: PagesServer) -> Iterator[None]:
    """Copies of the seeded model ``big`` and of the neuron ``attic``, which is away, with replicas
    of the copies."""
    _copy(server, "fleet_cataloguemodel", "name = 'big'", "'model-' || n", NUM_MODELS)
    _copy(server, "fleet_neuron", "name = 'attic'", "'node-' || n", NUM_HOSTS)
    try:
        yield
    finally:
        server.write("DELETE FROM fleet_neuron WHERE name LIKE 'node-%'")
        server.write("DELETE FROM fleet_cataloguemodel WHERE name LIKE 'model-%'")


def _copy(server: PagesServer, table: str, which: str, name: str, number: int) -> None:
    columns = [column for column in server.columns(table) if column != "id"]
    values = ", ".join(name if column == "name" else column for column in columns)
    server.write(
        f"{NUMBERS} INSERT INTO {table} ({', '.join(columns)}) "
        f"SELECT {values} FROM {table}, numbers WHERE {which}",
        number - 1,
    )
