"""Requests are recorded beside the requests: in batches, once, and never at their cost."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pytest
from django.db import DataError, OperationalError

from inference.gateway.request.outcome import RequestOutcome
from metering.models import RequestRecord
from metering.request_records import rows
from metering.request_records.writer import RequestRecordWriter
from tests.metering.operations import NOON_UNIX_S
from tests.metering.request_records.records import ended
from tests.metering.writer_support import LONG_S, wait_until


class Database:
    """``rows.insert`` with faults."""

    is_away = False
    breaks_after_commit = False
    refuses = ""
    num_calls = 0

    def insert(self, batch: Sequence[RequestOutcome], *, using: str) -> None:
        self.num_calls += 1
        if self.is_away:
            raise OperationalError("the server is gone")
        if any(one.settle.request_id == self.refuses for one in batch):
            raise DataError("no")
        rows.insert(batch, using=using)
        if self.breaks_after_commit:
            self.breaks_after_commit = False
            raise OperationalError("the connection broke")


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def writer(using: str, database: Database) -> Iterator[RequestRecordWriter]:
    made = RequestRecordWriter(using=using, max_queued=5, insert=database.insert, interval_s=0.01)
    made.start()
    yield made
    database.is_away = False
    made.stop(LONG_S)


def recorded(using: str) -> list[RequestRecord]:
    return list(RequestRecord.objects.using(using).order_by("id"))


def test_all_of_a_request_is_recorded(using: str, writer: RequestRecordWriter) -> None:
    request_id = uuid.uuid4().hex
    writer.add(
        ended(
            request_id,
            status=503,
            outcome="neuron_lost",
            error_message="The neuron beast went away.",
            end_user="ann",
            targets_tried=("own: queue_full", f"box/{'m' * 600}: upstream_failed"),
        )
    )
    wait_until(lambda: writer.depth == 0)
    (row,) = recorded(using)
    assert row.targets_tried.startswith("own: queue_full, box/mmm")
    assert len(row.targets_tried) == 500
    assert row.request_id.hex == request_id
    assert row.at == datetime.fromtimestamp(NOON_UNIX_S, UTC)
    assert (row.account, row.key, row.end_user) == ("lab", "hx-1", "ann")
    assert (row.model_asked, row.model, row.neuron) == ("gpt-4o", "tiny", "beast")
    assert (row.endpoint, row.client) == ("/v1/chat/completions", "curl")
    assert (row.status, row.outcome, row.code) == (503, "failed", "neuron_lost")
    assert row.message == "The neuron beast went away."
    assert (row.queue_ms, row.time_to_first_token_ms, row.duration_ms) == (20, 120, 1500)
    assert (row.prompt_tokens, row.cached_tokens) == (40, 10)
    assert (row.completion_tokens, row.reasoning_tokens, row.cost_micro_usd) == (30, 5, 0)


def test_what_there_is_not_is_null_and_texts_of_clients_fit(using: str) -> None:
    writer = RequestRecordWriter(using=using, interval_s=LONG_S)
    writer.start()
    strange = "a\0b\ud800" + "ü" * 500
    writer.add(ended(model="-", queue_ms=None, time_to_first_token_ms=None))
    writer.add(ended(model_asked=strange, end_user=strange, error_message=strange * 2))
    writer.stop(LONG_S)  # which records what is queued
    row, other = recorded(using)
    assert (row.model, row.code, row.end_user, row.targets_tried) == ("", None, None, "")
    assert (row.queue_ms, row.time_to_first_token_ms) == (None, None)
    assert other.model_asked.startswith("ab?ü") and len(other.model_asked) == 199
    assert len(other.message) == 499


def test_an_outage_is_waited_for_and_a_full_queue_drops_with_a_log_line(
    using: str, writer: RequestRecordWriter, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.is_away = True
    with caplog.at_level(logging.ERROR):
        for _ in range(7):
            writer.add(ended())
        assert (writer.depth, writer.num_dropped) == (5, 2)
        wait_until(lambda: "2 requests of this gateway are not recorded" in caplog.text)
    wait_until(lambda: database.num_calls > 0)
    assert (writer.depth, recorded(using)) == (5, [])
    database.is_away = False
    wait_until(lambda: writer.depth == 0)
    assert (len(recorded(using)), writer.num_dropped) == (5, 2)


def test_a_batch_is_recorded_once_and_a_row_that_is_refused_holds_up_no_other(
    using: str, writer: RequestRecordWriter, database: Database
) -> None:
    database.is_away = True
    database.breaks_after_commit = True
    database.refuses = uuid.uuid4().hex
    for request_id in ("", database.refuses, ""):
        writer.add(ended(request_id))
    database.is_away = False
    wait_until(lambda: writer.depth == 0)
    assert (len(recorded(using)), writer.num_dropped >= 1) == (2, True)
