"""What eight threads add at once to what an account keeps stays within its quota."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from pytest_django.plugin import DjangoDbBlocker

from inference.batches.models import Batch, StoredFile
from inference.batches.services import batch_create, file_add
from inference.conversations.models import StoredResponse
from inference.conversations.records import ResponseRecord
from inference.conversations.services import response_save
from inference.quotas import Quota, QuotaFullError, Used
from tests.cases import each_case
from tests.metering.databases import metering_database
from tests.servers.private_postgres import new_database, running_postgres

NUM_THREADS, NUM_EACH = 8, 6
ROOM = 11
TABLES = (StoredFile, Batch, StoredResponse)
Add = Callable[[int, str], Any]


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
)
def database(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[str]:
    if request.param == "sqlite":
        path = tmp_path_factory.mktemp("quotas") / "quotas.sqlite3"
        with django_db_blocker.unblock(), metering_database(f"sqlite:///{path}", TABLES) as using:
            yield using
        return
    with running_postgres() as url, django_db_blocker.unblock():
        with metering_database(new_database(url), TABLES) as using:
            yield using


def _add_file(account: str, quota: Quota) -> Add:
    return lambda number, using: file_add(
        file_id=f"file-{account}-{number}",
        account=account,
        name="x",
        purpose="batch",
        size_bytes=10,
        quota=quota,
        using=using,
    )


def _add_batch(number: int, using: str) -> Any:
    names = ("id", "input_file", "output_file", "error_file")
    fields = {name: f"{name}-{number}" for name in names}
    fields |= {"account": "lab", "dialect": "openai", "endpoint": "/v1/completions"}
    return batch_create(lasts=timedelta(hours=1), fields=fields, max_open=ROOM, using=using)


def _add_response(number: int, using: str) -> Any:
    response = {"id": f"resp_{number}", "status": "completed", "model": "tiny", "output": []}
    record = ResponseRecord(
        account="lab",
        response=response | {"created_at": 1_700_000_000},
        input_items=[],
        previous_id=None,
        background=False,
    )
    return response_save(record=record, quota=Quota(ROOM), using=using)


@each_case(
    ("model", "account", "add"),
    [
        (StoredFile, "lab", _add_file("lab", Quota(ROOM, 10_000))),
        (StoredFile, "bytes", _add_file("bytes", Quota(10_000, ROOM * 10 + 9))),
        (Batch, "lab", _add_batch),
        (StoredResponse, "lab", _add_response),
    ],
)
def test_of_many_at_once_exactly_what_fits_is_added(
    database: str, model: Any, account: str, add: Add
) -> None:
    def work(thread: int) -> int:
        num_added = 0
        try:
            for number in range(NUM_EACH):
                try:
                    add(thread * NUM_EACH + number, database)
                    num_added += 1
                except QuotaFullError as error:
                    assert error.used.number == ROOM
        finally:
            connections[database].close()
        return num_added

    with ThreadPoolExecutor(NUM_THREADS) as threads:
        num_added = sum(threads.map(work, range(NUM_THREADS)))
    rows = model.objects.using(database).filter(account=account)
    assert (num_added, rows.count()) == (ROOM, ROOM)


def test_a_quota_counts_what_comes() -> None:
    quota = Quota(2, 100)
    quota.check(Used(1, 60), 40)
    for used, more in ((Used(2, 0), 0), (Used(0, 60), 41)):
        with pytest.raises(QuotaFullError):
            quota.check(used, more)
