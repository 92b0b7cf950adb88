"""How PostgreSQL finds requests: two names that never meet must not cost a walk over all rows."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from django.db import connections
from pytest_django.plugin import DjangoDbBlocker

from metering import request_records
from metering.request_filters import RequestFilter, matching
from tests.cases import each_case
from tests.metering.databases import clear, metering_database
from tests.metering.request_records.records import ended
from tests.servers.private_postgres import new_database

pytestmark = pytest.mark.postgres

NUM_ROWS = 20_000
COLUMNS = ", ".join(
    f'"{name}"' for name in request_records.COLUMNS if name not in ("request_id", "at")
)


@pytest.fixture(scope="module")
def records(postgres_url: str, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """Django's name of a database with requests of two accounts, two models and two neurons, of
    which one of each never meet."""
    pairs = [("a", "x", "one"), ("a", "x", "two"), ("b", "y", "two"), ("b", "x", "two")]
    now_unix_s = time.time()
    with django_db_blocker.unblock(), metering_database(new_database(postgres_url)) as using:
        clear(using)
        request_records.insert(
            [
                ended(ended_unix_s=now_unix_s - number, account=account, model=model, neuron=neuron)
                for number, (account, model, neuron) in enumerate(pairs)
            ],
            using=using,
        )
        with connections[using].cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {request_records.TABLE} (request_id, at, {COLUMNS}) "
                f"SELECT gen_random_uuid(), at - number * interval '1 minute', {COLUMNS} "
                f"FROM {request_records.TABLE}, generate_series(1, %s) AS number",
                [NUM_ROWS // len(pairs)],
            )
            cursor.execute("ANALYZE")
        yield using


@each_case(
    "where",
    [
        RequestFilter(account="a", model="y"),
        RequestFilter(model="y", neuron="one"),
        RequestFilter(account="b", neuron="one"),
        RequestFilter(accounts=frozenset({"b"}), model="x", neuron="one"),
        RequestFilter(accounts=frozenset({"a", "c"}), model="y"),
    ],
    ids=lambda where: "-".join(
        name for name in ("account", "accounts", "model", "neuron") if getattr(where, name)
    ),
)
def test_names_that_never_meet_are_compared_within_an_index(
    records: str, where: RequestFilter
) -> None:
    found = matching(where).using(records).order_by("-at", "-pk")[:51]
    plan = found.explain(analyze=True)
    assert "Index Cond" in plan and "Rows Removed by Filter" not in plan, plan
    assert list(found) == []
