"""Requests are recorded beside the requests: in batches, once, and never at their cost; captured
bodies without secrets, bounded; and over REST, by command and on their page, who sees which."""

from __future__ import annotations

import csv
import io
import json
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from django.conf import settings
from django.core.management.base import CommandError
from django.db import DataError, OperationalError
from django.test import Client

from helexa_site.management.base import ExitCode
from inference.gateway.request.outcome import Capture
from metering import request_records, services, tasks
from metering.audit import COMMAND
from metering.models import Account, ApiKey, AuditEntry, CapturedRequest, RequestRecord
from metering.money import Metered
from metering.pages import requests_url
from metering.pages.requests import details
from metering.request_filters import all_fields
from metering.request_records import RecordQueue
from metering.services import CreatedKey, key_create
from tests.cases import each_case
from tests.metering.callers import get, ok, person, refused, text_of
from tests.metering.commands.command_output import output, printed, printed_json
from tests.metering.operations import NOON_UNIX_S
from tests.metering.request_records.records import ended, insert, pair, record


def recorded(using: str) -> list[RequestRecord]:
    return list(RequestRecord.objects.using(using).order_by("id"))


def test_all_of_a_request_is_recorded_and_texts_of_clients_fit(using: str) -> None:
    queue, request_id = RecordQueue(using=using), uuid.uuid4().hex
    failure = {"status": 503, "outcome": "neuron_lost", "error_message": "It went away."}
    tried = ("own: queue_full", f"box/{'m' * 600}: upstream_failed")
    queue.add(*pair(ended(request_id, **failure, end_user="ann", targets_tried=tried)))
    queue.add(*pair(ended(model="-", queue_ms=None, time_to_first_token_ms=None)))
    strange = "a\0b\ud800" + "ü" * 500
    queue.add(*pair(ended(model_asked=strange, end_user=strange, error_message=strange * 2)))
    queue.write()
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
    assert nothing.targets_tried == ""
    assert (nothing.queue_ms, nothing.time_to_first_token_ms) == (None, None)
    assert other.model_asked.startswith("ab?ü") and len(other.model_asked) == 199
    assert len(other.message) == 499


def test_an_outage_is_waited_for_and_a_full_queue_drops_with_a_log_line(
    using: str, caplog: pytest.LogCaptureFixture
) -> None:
    faults: set[str] = {"away"}
    refuses = uuid.uuid4().hex

    def write_batch(batch: Sequence[request_records.Ended], *, using: str) -> None:
        if "away" in faults:
            raise OperationalError("the server is gone")
        if any(settle.request_id == refuses for settle, _ in batch):
            raise DataError("no")
        request_records.insert(batch, using=using)
        if "breaks after commit" in faults:
            faults.clear()
            raise OperationalError("the connection broke")

    queue = RecordQueue(using=using, max_queued=5, insert=write_batch)
    let_go: list[int] = []

    def write() -> None:
        """As its thread does while the database is offline, and after."""
        for _ in range(3):
            with suppress(OperationalError):
                queue.write()

    for number in range(7):
        queue.add(*pair(ended()), partial(let_go.append, number))
    assert (queue.depth, queue.num_dropped, let_go) == (5, 2, [5, 6])
    write()
    assert (queue.depth, recorded(using), let_go) == (5, [], [5, 6])
    faults.clear()
    write()
    assert "2 requests of this gateway are not recorded" in caplog.text
    assert (len(recorded(using)), queue.num_dropped, len(let_go)) == (5, 2, 7)
    # A batch is recorded once, and a row that is refused holds up no other.
    faults.add("breaks after commit")
    for request_id in ("", refuses, ""):
        queue.add(*pair(ended(request_id)))
    write()
    assert (queue.depth, len(recorded(using)), queue.num_dropped) == (0, 7, 3)


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
    insert(ended(request_id, captured=captured), using=using)
    return CapturedRequest.objects.using(using).get(request_id=request_id)


def test_what_is_stored(using: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = stored(capture(f'{{"content": "my key is {SECRET}"}}', "a\0b", "<|user|>"), using)
    assert row.headers == "authorization: ***\nuser-agent: curl/8"
    assert row.request == '{"content": "my key is sk-***"}'
    assert (row.answer, row.trace) == ("ab", "<|user|>")
    for data in (f"data:image/png;base64,{IMAGE}", IMAGE):  # their size and digest
        first, second = (stored(capture(f'{{"a": "{data}"}}'), using).request for _ in range(2))
        assert first == second and len(first) < 100
        shown = f'{{"a": "{data.removesuffix(IMAGE)}[2,200 characters, sha256 '
        assert first.startswith(shown)
    row = stored(capture("word " * request_records.MAX_CAPTURED_CHARS), using)
    assert len(row.request) < request_records.MAX_CAPTURED_CHARS + 100
    assert "characters left out]" in row.request and row.request.endswith("bytes left out]")
    monkeypatch.setattr(request_records, "MAX_CAPTURED_ROWS", 2)
    made = [stored(capture(word), using) for word in "abc"]
    left = CapturedRequest.objects.using(using).values_list("pk", flat=True)
    assert set(left) == {row.pk for row in made[1:]}, "the oldest are deleted beyond the most"
    monkeypatch.setattr(request_records, "MAX_CAPTURED_BYTES", 20)
    captures, queue = [capture("question") for _ in range(2)], RecordQueue()
    for captured in captures:
        queue.add(*pair(ended(captured=captured)))
    assert ([one.num_bytes for one in captures], queue.depth) == ([14, 0], 2)


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


HOUR_S = 3600.0


def ids(client: Client, query: str = "", key: str | None = None) -> list[str]:
    return [row["id"] for row in ok(client, f"requests{query}", key)["data"]]


@pytest.fixture
def operator(account: Account) -> Client:
    return person("olga", is_staff=True)


@pytest.mark.django_db
@pytest.mark.usefixtures("listens_elsewhere")
def test_who_sees_what(
    client: Client, operator: Client, account: Account, made: CreatedKey
) -> None:
    of = {
        "key": record(account="research", key=made.row.prefix),
        "teammate": record(account="research", key="hx-another000"),
        "other": record(account="other", key="hx-others0000"),
        "unknown": record(account="", key="", status=401, outcome="invalid_api_key"),
    }
    assert ids(client, key=made.key) == [of["key"]]
    assert ids(client, "?account=other", made.key) == []
    assert ok(client, f"requests/{of['key']}", made.key)["id"] == of["key"]
    for name in ("teammate", "other", "unknown"):
        assert refused(client, f"requests/{of[name]}", made.key) == (404, "request_not_found")
    assert set(ids(person("vic", account, role="viewer"))) == {of["key"], of["teammate"]}
    assert ids(person("nell")) == []
    assert set(ids(operator)) == set(of.values())
    for scopes in (["usage:read", "accounts:read"], ["accounts:read"]):
        reader = key_create(actor=COMMAND, account=account, scopes=scopes).key
        assert set(ids(client, key=reader)) == set(of.values())
        assert ok(client, f"requests/{of['unknown']}", reader)["status"] == 401


@pytest.mark.django_db
@pytest.mark.usefixtures("listens_elsewhere")
@each_case(
    ("query", "changes"),
    [
        ("account=lab-7", {"account": "lab-7"}),
        ("end_user=ann", {"end_user": "ann"}),
        ("model=large", {"model": "large"}),
        ("neuron=attic", {"neuron": "attic"}),
        ("status=503", {"status": 503, "outcome": "neuron_lost"}),
        ("status=0", {"status": 0, "outcome": "cancelled"}),
        ("code=queue_full", {"status": 503, "outcome": "queue_full"}),
        ("outcome=failed", {"status": 500, "outcome": "internal_error"}),
        ("outcome=refused", {"status": 429, "outcome": "insufficient_quota"}),
        ("outcome=cancelled", {"status": 200, "outcome": "cancelled"}),
        ("until=2h", {"ended_unix_s": time.time() - 3 * HOUR_S}),
        ("until=2026-01-01T00:00", {"ended_unix_s": 1_700_000_000.0}),
        ("id=abcdef00", {"request_id": "abcdef" + 26 * "0"}),
        ("id=ABCDEF00-0000", {"request_id": "abcdef" + 26 * "0"}),
        ("status=503&outcome=failed&model=tiny", {"status": 503, "outcome": "neuron_lost"}),
    ],
)
def test_each(operator: Client, query: str, changes: dict[str, Any]) -> None:
    RequestRecord.objects.all().delete()
    wanted = record(**changes)
    record(request_id="0" * 32)
    (row,) = ok(operator, f"requests?{query}")["data"]
    assert row["id"] == wanted and row == ok(operator, f"requests/{uuid.UUID(wanted)}")
    assert row["status"] == changes.get("status", 200)
    assert row["model_asked"] == "gpt-4o" and row["model"] == changes.get("model", "tiny")


@pytest.mark.django_db
@pytest.mark.usefixtures("listens_elsewhere")
def test_bad_values(operator: Client) -> None:
    for query in (
        *("status=5x3", "outcome=lost", "since=yesterday", "until=0001-01-01", "id=xyz"),
        *("id=abcdef0", "limit=0", "limit=1001", "before=none", "colour=red", "offset=3"),
    ):
        problem = get(operator, f"requests?{query}").json()
        param = query.partition("=")[0]
        code = "unknown_parameter" if param in ("colour", "offset") else "invalid_value"
        assert (problem["status"], problem["param"], problem["code"]) == (400, param, code)


@pytest.mark.django_db
@pytest.mark.usefixtures("listens_elsewhere")
def test_pages_csv_and_keys_by_their_names(operator: Client, made: CreatedKey) -> None:
    now_s = time.time()
    old = [record(ended_unix_s=now_s - age * HOUR_S, model="m") for age in (6, 5, 5, 4)][::-1]
    first = ok(operator, "requests?limit=2&model=m")
    second = ok(operator, first["next"].partition("/api/")[2])
    found = [[row["id"] for row in page["data"]] for page in (first, second)]
    assert (found, second["next"]) == ([[old[0], old[1]], [old[2], old[3]]], None)
    RequestRecord.objects.all().delete()
    record(ended_unix_s=now_s - 3 * HOUR_S, status=500, outcome="internal_error")
    wanted = record(account="research", key=made.row.prefix, end_user="=cmd()")
    for query in ("outcome=answered", "status=200", "since=2h", "key=ci"):
        assert ids(operator, f"?{query}") == [wanted], query
    assert ids(operator, "?key=hx-unknown000") == []
    insert(ended(metered=Metered(unit="second", num_units=5, micro_usd=11)))
    (of_seconds,) = RequestRecord.objects.filter(unit="second")
    shown = {one.name: one.value for one in details(of_seconds, is_operator=False)}
    assert (shown["Metered"], shown["Cost"]) == ("5 seconds", "$0.000011")
    (fields,) = all_fields([of_seconds])
    assert (fields["unit"], fields["num_units"]) == ("second", 5)
    of_seconds.delete()
    response = get(operator, "requests?format=csv&since=2h")
    assert response["Content-Disposition"] == 'attachment; filename="requests.csv"'
    (row,) = csv.DictReader(io.StringIO(response.content.decode()))
    assert (row["id"], row["end_user"], row["prompt_tokens"]) == (wanted, "'=cmd()", "40")


@pytest.mark.django_db
@pytest.mark.usefixtures("listens_elsewhere")
def test_the_command() -> None:
    def show(*words: str) -> tuple[str, str]:
        return printed("requests", *words)

    refusal = {"status": 429, "outcome": "insufficient_quota", "error_message": "Spent."}
    refused_id = record(request_id="abcdef99" + 24 * "f", **refusal)
    for number in ("01", "02"):
        record(request_id=f"abcdef00{number}" + 22 * "0")
    text, hints = show("list", "--code", "insufficient_quota")
    assert refused_id in text and "refused" in text and hints == ""
    (row,) = json.loads(show("list", "--outcome", "refused", "--json")[0])
    assert row["message"] == "Spent."
    text, hints = show("list", "--limit", "1")
    assert text.count("gpt-4o") + text.count("tiny") == 1 and "There are older ones" in hints
    for word, found in ((refused_id, "Spent."), ("abcdef99", refused_id), ("ABCDEF00-01", "f0001")):
        assert found in show("show", word)[0]
    with pytest.raises(CommandError, match="beginning of several ids"):
        show("show", "abcdef00")
    for word in ("abcdef9", "nothing", "abcdef98", "0" * 32):
        with pytest.raises(CommandError, match="no record of a request") as caught:
            show("show", word)
        assert caught.value.returncode == ExitCode.NOT_FOUND


@pytest.mark.django_db
@pytest.mark.usefixtures("listens_elsewhere")
def test_members_find_their_own_by_filters(account: Account, operator: Client) -> None:
    mia = person("mia", account, role="member")
    own, other = record(account="research"), record(account="other", error_message="<b>secret")
    text = text_of(mia, "/requests/")
    assert own[:8] in text and other[:8] not in text
    assert own in text_of(mia, f"/requests/{own}")
    for request_id in (other, "none"):
        assert mia.get(f"/requests/{request_id}").status_code == 404
    text = text_of(operator, f"/requests/{other}")
    assert other in text and "&lt;b&gt;secret" in text and "<b>secret" not in text
    response = mia.get("/requests/?format=csv")
    assert response["Content-Type"].startswith("text/csv")
    (row,) = csv.DictReader(io.StringIO(response.content.decode()))
    assert row["id"] == own
    failed = record(status=503, outcome="neuron_lost", neuron="attic")
    answered = record()
    text = text_of(operator, requests_url(outcome="failed", neuron="attic", code=""))
    assert failed[:8] in text and answered[:8] not in text
    assert 'value="attic"' in text and "<option selected>failed" in text
    assert '<details class="hx-more" open>' in text
    text = text_of(operator, "/requests/?status=many")
    assert "&#x27;many&#x27; is not an HTTP status" in text
    text = text_of(operator, "/requests/?model=tiny", **{"HX-Request": "true"})
    assert answered[:8] in text and text.lstrip().startswith('<div id="request-rows">')
    assert "<html" not in text, "the live part is the rows alone"
