"""What is kept of clients: results of their texts by digest, ids that sort by time, and no more
than an account's quota whoever adds at once."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from pytest_django.plugin import DjangoDbBlocker

from inference import request_ids
from inference.batches.models import Batch, StoredFile
from inference.batches.services import batch_create, file_add
from inference.conversations.models import ResponseRecord, StoredResponse
from inference.conversations.services import response_save
from inference.quotas import Quota, QuotaFullError
from inference.recent_results import ENTRY_BYTES, RecentResults
from inference.request_ids import REQUEST_ID, new_request_id
from tests.cases import each_case
from tests.metering.databases import metering_database
from tests.servers.private_postgres import new_database, running_postgres


def made(max_entries: int) -> RecentResults[str | None]:
    return RecentResults(max_entries * (ENTRY_BYTES + 10), lambda _, result: len(result or ""))


def fail(text: str) -> str:
    raise ValueError(text)


def test_a_result_is_computed_once_and_the_least_recently_used_goes_first() -> None:
    kept = made(2)
    for text in ("a", "b", "a", "c"):
        assert kept.get(text, str.upper) == text.upper()
    assert kept.get("a", fail) == "A"
    with pytest.raises(ValueError):
        kept.get("b", fail)
    assert kept.get("none", lambda _: None) is None
    assert kept.get("none", fail) is None
    kept, barrier = made(10), threading.Barrier(4)

    def slow(text: str) -> str:
        barrier.wait()
        return text.upper()

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(kept.get, "aaaa", [slow] * 4)) == ["A"] * 4
    assert kept.num_bytes == ENTRY_BYTES + 1, "threads that compute the same count it once"


def test_many_and_large_results_take_no_more_than_they_may_and_texts_are_not_kept() -> None:
    kept = made(10)
    for number in range(100):
        kept.get(str(number), lambda text: number % 7 * text)  # noqa: B023
        assert kept.num_bytes <= 10 * (ENTRY_BYTES + 10)
    assert len(kept) >= 9
    kept.get("fits", lambda _: (9 * ENTRY_BYTES + 100) * "x")
    assert (len(kept), kept.num_bytes) == (1, 10 * (ENTRY_BYTES + 10))
    kept.get("huge", lambda _: 10_000 * "x")
    assert len(kept) == 1, "one that does not fit drives no others out"
    text = "a client's words \ud800".upper()
    references = sys.getrefcount(text)
    kept.get(text, lambda _: "known")
    assert (sys.getrefcount(text), kept.get(text, fail)) == (references, "known")


@each_case("byte", [None, 0x00, 0xFF])
def test_ids_are_uuids_of_their_time(byte: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if byte is not None:
        monkeypatch.setattr(request_ids.os, "urandom", lambda num_bytes: bytes([byte]) * num_bytes)
    before_ms = time.time_ns() // 1_000_000
    request_id = new_request_id()
    after_ms = time.time_ns() // 1_000_000
    made = uuid.UUID(hex=request_id)
    assert REQUEST_ID.fullmatch(request_id)
    assert (made.hex, made.version, made.variant) == (request_id, 7, uuid.RFC_4122)
    assert before_ms <= int(request_id[:12], 16) <= after_ms
    later = [new_request_id(1_800_000_000 + number / 1000) for number in range(200)]
    assert later == sorted(later) and int(later[1][:12], 16) == 1_800_000_000_001
    if byte is None:
        assert len({new_request_id(1.0) for _ in range(10_000)}) == 10_000


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
def test_exactly_what_fits_is_added(database: str, model: Any, account: str, add: Add) -> None:
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
