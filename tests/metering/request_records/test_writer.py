"""Requests are recorded beside the requests: in batches, once, and never at their cost; captured
bodies without secrets, bounded, and shown to those who may read them."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from django.conf import settings
from django.core.management.base import CommandError
from django.db import DataError, OperationalError, connections
from django.test import Client

from inference.gateway.request.outcome import Capture, RequestOutcome
from metering import request_records, services, tasks
from metering.audit import COMMAND
from metering.models import Account, ApiKey, AuditEntry, CapturedRequest, RequestRecord
from metering.request_filters import RequestFilter, matching
from metering.request_records import RequestRecordWriter
from metering.services import CreatedKey
from tests.metering.callers import get, ok, person, refused
from tests.metering.commands.command_output import output, printed_json
from tests.metering.databases import LONG_S, wait_until
from tests.metering.operations import NOON_UNIX_S
from tests.metering.request_records.records import ended, record


def recorded(using: str) -> list[RequestRecord]:
    return list(RequestRecord.objects.using(using).order_by("id"))


def test_all_of_a_request_is_recorded_and_texts_of_clients_fit(using: str) -> None:
    writer, request_id = RequestRecordWriter(using=using, interval_s=LONG_S), uuid.uuid4().hex
    writer.start()
    failure = {"status": 503, "outcome": "neuron_lost", "error_message": "It went away."}
    tried = ("own: queue_full", f"box/{'m' * 600}: upstream_failed")
    writer.add(ended(request_id, **failure, end_user="ann", targets_tried=tried))
    writer.add(ended(model="-", queue_ms=None, time_to_first_token_ms=None))
    strange = "a\0b\ud800" + "ü" * 500
    writer.add(ended(model_asked=strange, end_user=strange, error_message=strange * 2))
    for _ in range(2):
        writer.stop(LONG_S)  # which records what is queued
    row, nothing, other = recorded(using)
    assert row.targets_tried.startswith("own: queue_full, box/mmm")
    assert len(row.targets_tried) == 500
    assert (row.request_id.hex, row.at) == (request_id, datetime.fromtimestamp(NOON_UNIX_S, UTC))
    assert (row.account, row.key, row.end_user) == ("lab", "hx-1", "ann")
    assert (row.model_asked, row.model, row.neuron) == ("gpt-4o", "tiny", "beast")
    assert (row.endpoint, row.client) == ("/v1/chat/completions", "curl")
    assert (row.status, row.outcome, row.code) == (503, "failed", "neuron_lost")
    assert row.message == "It went away."
    assert (row.queue_ms, row.time_to_first_token_ms, row.duration_ms) == (20, 120, 1500)
    assert (row.prompt_tokens, row.cached_tokens) == (40, 10)
    assert (row.completion_tokens, row.reasoning_tokens, row.cost_micro_usd) == (30, 5, 0)
    assert (nothing.model, nothing.code, nothing.end_user) == ("", None, None)
    assert (nothing.targets_tried, nothing.queue_ms, nothing.time_to_first_token_ms) == (
        *("", None, None),
    )
    assert other.model_asked.startswith("ab?ü") and len(other.model_asked) == 199
    assert len(other.message) == 499


def test_an_outage_is_waited_for_and_a_full_queue_drops_with_a_log_line(
    using: str, caplog: pytest.LogCaptureFixture
) -> None:
    faults: set[str] = {"away"}
    refuses, calls = uuid.uuid4().hex, []

    def insert(batch: Sequence[RequestOutcome], *, using: str) -> None:
        calls.append(batch)
        if "away" in faults:
            raise OperationalError("the server is gone")
        if any(one.settle.request_id == refuses for one in batch):
            raise DataError("no")
        request_records.insert(batch, using=using)
        if "breaks after commit" in faults:
            faults.clear()
            raise OperationalError("the connection broke")

    writer = RequestRecordWriter(using=using, max_queued=5, insert=insert, interval_s=0.01)
    writer.start()
    with caplog.at_level(logging.ERROR):
        for _ in range(7):
            writer.add(ended())
        assert (writer.depth, writer.num_dropped) == (5, 2)
        wait_until(lambda: "2 requests of this gateway are not recorded" in caplog.text)
    wait_until(lambda: calls != [])
    assert (writer.depth, recorded(using)) == (5, [])
    faults.clear()
    wait_until(lambda: writer.depth == 0)
    assert (len(recorded(using)), writer.num_dropped) == (5, 2)
    # A batch is recorded once, and a row that is refused holds up no other.
    faults |= {"away", "breaks after commit"}
    for request_id in ("", refuses, ""):
        writer.add(ended(request_id))
    faults.remove("away")
    wait_until(lambda: writer.depth == 0)
    assert (len(recorded(using)), writer.num_dropped >= 3) == (7, True)
    writer.stop(LONG_S)


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


def test_names_that_never_meet_are_compared_within_an_index(using: str) -> None:
    """Two names that never meet must not cost a walk over all rows."""
    if connections[using].vendor != "postgresql":
        pytest.skip("that is asked of PostgreSQL")
    names = (name for name in request_records.COLUMNS if name not in ("request_id", "at"))
    columns = ", ".join(f'"{name}"' for name in names)
    for account, model, neuron in map(str.split, ("a x one", "a x two", "b y two", "b x two")):
        changes = {"account": account, "model": model, "neuron": neuron}
        request_records.insert([ended(ended_unix_s=time.time(), **changes)], using=using)
    with connections[using].cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {request_records.TABLE} (request_id, at, {columns}) "
            f"SELECT gen_random_uuid(), at - number * interval '1 minute', {columns} "
            f"FROM {request_records.TABLE}, generate_series(1, 5000) AS number"
        )
        cursor.execute("ANALYZE")
    for where in (
        RequestFilter(account="a", model="y"),
        RequestFilter(model="y", neuron="one"),
        RequestFilter(account="b", neuron="one"),
        RequestFilter(accounts=frozenset({"b"}), model="x", neuron="one"),
        RequestFilter(accounts=frozenset({"a", "c"}), model="y"),
    ):
        found = matching(where).using(using).order_by("-at", "-pk")[:51]
        plan = found.explain(analyze=True)
        assert "Index Cond" in plan and "Rows Removed by Filter" not in plan, plan
        assert list(found) == []
