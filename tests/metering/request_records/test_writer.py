"""Requests are recorded beside the requests: in batches, once, and never at their cost; captured
bodies without secrets, bounded, and shown to those who may read them."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pytest
from django.conf import settings
from django.core.management.base import CommandError
from django.db import DataError, OperationalError
from django.test import Client

from inference.gateway.request.outcome import Capture, RequestOutcome
from metering import request_records, services, tasks
from metering.audit import COMMAND
from metering.models import Account, ApiKey, AuditEntry, CapturedRequest, RequestRecord
from metering.request_records import RequestRecordWriter
from metering.services import CreatedKey
from tests.metering.callers import get, ok, person, refused
from tests.metering.commands.command_output import output, printed_json
from tests.metering.databases import LONG_S, wait_until
from tests.metering.operations import NOON_UNIX_S
from tests.metering.request_records.records import ended, record


class Database:
    """``request_records.insert`` with faults."""

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
        request_records.insert(batch, using=using)
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
    for _ in range(2):
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
    # A batch is recorded once, and a row that is refused holds up no other.
    database.is_away = database.breaks_after_commit = True
    database.refuses = uuid.uuid4().hex
    for request_id in ("", database.refuses, ""):
        writer.add(ended(request_id))
    database.is_away = False
    wait_until(lambda: writer.depth == 0)
    assert (len(recorded(using)), writer.num_dropped >= 3) == (7, True)


SECRET = "sk-" + "x" * 30
IMAGE = "iVBORw0KGgo" * 200


def capture(request: str, answer: str = "Paris.", trace: str = "") -> Capture:
    made = Capture([(b"authorization", b"Bearer " + SECRET.encode()), (b"user-agent", b"curl/8")])
    made.ask(request.encode())
    made.send(answer.encode())
    made.trace = trace
    return made


def stored(captured: Capture, using: str) -> CapturedRequest:
    request_id = uuid.uuid4().hex
    request_records.insert([ended(request_id, captured=captured)], using=using)
    return CapturedRequest.objects.using(using).get(request_id=request_id)


def test_what_is_stored(using: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = stored(capture(f'{{"content": "my key is {SECRET}"}}', "a\0b", "<|user|>"), using)
    assert row.headers == "authorization: ***\nuser-agent: curl/8"
    assert row.request == '{"content": "my key is sk-***"}'
    assert (row.answer, row.trace) == ("ab", "<|user|>")
    for data in (f"data:image/png;base64,{IMAGE}", IMAGE):  # their size and digest
        rows = [stored(capture(f'{{"a": "{data}"}}'), using) for _ in range(2)]
        shown = f'{{"a": "{data.removesuffix(IMAGE)}[2,200 characters, sha256 '
        assert rows[0].request == rows[1].request and len(rows[0].request) < 100
        assert rows[0].request.startswith(shown)
    row = stored(capture("word " * request_records.MAX_CAPTURED_CHARS), using)
    assert len(row.request) < request_records.MAX_CAPTURED_CHARS + 100
    assert "characters left out]" in row.request and row.request.endswith("bytes left out]")
    monkeypatch.setattr(request_records, "MAX_CAPTURED_ROWS", 2)
    made = [stored(capture(word), using) for word in "abc"]
    left = CapturedRequest.objects.using(using).values_list("pk", flat=True)
    assert set(left) == {row.pk for row in made[1:]}, "the oldest are deleted beyond the most"
    monkeypatch.setattr(request_records, "MAX_CAPTURED_BYTES", 20)
    first, second = capture("question"), capture("question")
    queue = RequestRecordWriter()
    queue.add(ended(captured=first))
    queue.add(ended(captured=second))
    assert (first.num_bytes, second.num_bytes, queue.depth) == (14, 0, 2)


@pytest.fixture
def request_id(listens_elsewhere: None, account: Account, made: CreatedKey) -> str:
    captured = capture("<b>the question", trace="the rendered prompt")
    return record(account="research", key=made.row.prefix, captured=captured)


def readers() -> set[str]:
    return {one.actor for one in AuditEntry.objects.filter(action="request.read_bodies")}


def test_who_reads_captured_bodies_on_pages_and_that_is_audited(
    account: Account, made: CreatedKey, request_id: str
) -> None:
    path = f"/requests/{request_id}"
    olga, mia = person("olga", is_staff=True), person("mia", account, role="member")
    page = olga.get(path).content.decode()
    assert "Show the captured bodies" in page and "the question" not in page
    shown = olga.post(path)
    assert "&lt;b&gt;the question" in shown.content.decode()
    assert "the rendered prompt" in shown.content.decode()
    assert shown["Cache-Control"] == "no-store"
    assert readers() == {"user:olga"}
    assert olga.post(f"/requests/{record()}").status_code == 403, "nothing was captured"
    assert "captured" not in mia.get(path).content.decode()
    assert mia.post(path).status_code == 403
    ApiKey.objects.filter(pk=made.row.pk).update(created_by="user:mia")
    assert "the question" in mia.post(path).content.decode()
    assert person("otto", account).post(path).status_code == 200
    assert person("nell").post(path).status_code == 404


def test_who_reads_captured_bodies_over_rest_and_by_command(
    client: Client, account: Account, made: CreatedKey, request_id: str
) -> None:
    path = f"requests/{request_id}/capture"
    mia = person("mia", account, role="member")
    assert refused(client, path, made.key) == (403, "insufficient_scope")
    assert refused(person("nell"), path) == (404, "request_not_found")
    assert refused(mia, path) == (403, "insufficient_scope")
    assert readers() == set()
    ApiKey.objects.filter(pk=made.row.pk).update(created_by="user:mia")
    scopes = ["usage:read", "accounts:read", "accounts:write"]
    operators = services.key_create(actor=COMMAND, account=account, scopes=scopes)
    for asker, key in ((mia, ""), (client, operators.key)):
        shown = ok(asker, path, key)
        assert (shown["id"], shown["answer"]) == (request_id, "Paris.")
        assert (shown["request"], shown["trace"]) == ("<b>the question", "the rendered prompt")
        assert SECRET not in shown["headers"]
    assert get(mia, path)["Cache-Control"] == "no-store"
    show = ("requests", "show", request_id)
    assert "the question" not in output(*show)
    assert "request:\n<b>the question\n\ntrace:\nthe rendered prompt" in output(*show, "--body")
    assert printed_json(*show, "--body")["capture"]["answer"] == "Paris."
    assert readers() == {"user:mia", f"key:{operators.row.prefix}", str(COMMAND)}
    with pytest.raises(CommandError, match="No bodies of this request are stored"):
        output("requests", "show", record(), "--body")


@pytest.mark.django_db(transaction=True)
def test_they_are_forgotten() -> None:
    days = settings.CONFIG.capture_retention_days
    for ago in (days + 1, days - 1):
        at = time.time() - 86_400 * ago
        record(captured=capture(str(ago)), ended_unix_s=at)
    tasks.forget_request_records()
    assert [row.request for row in CapturedRequest.objects.all()] == [str(days - 1)]
