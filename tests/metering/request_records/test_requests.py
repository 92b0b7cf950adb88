"""Requests over REST, by command and on their page: who sees which, and every filter."""

from __future__ import annotations

import csv
import io
import json
import time
import uuid
from typing import Any

import pytest
from django.core.management.base import CommandError
from django.test import Client

from helexa_site.management.base import ExitCode
from metering import request_records
from metering.audit import COMMAND
from metering.models import Account, RequestRecord
from metering.money import Metered
from metering.pages import requests_url
from metering.pages.requests import details
from metering.request_filters import all_fields
from metering.services import CreatedKey, key_create
from tests.cases import each_case
from tests.metering.callers import get, ok, person, refused, text_of
from tests.metering.commands.command_output import printed
from tests.metering.request_records.records import ended, record

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("listens_elsewhere")]

HOUR_S = 3600.0


def ids(client: Client, query: str = "", key: str | None = None) -> list[str]:
    return [row["id"] for row in ok(client, f"requests{query}", key)["data"]]


@pytest.fixture
def operator(account: Account) -> Client:
    return person("olga", is_staff=True)


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


def test_bad_values(operator: Client) -> None:
    for query in (
        *("status=5x3", "outcome=lost", "since=yesterday", "until=0001-01-01", "id=xyz"),
        *("id=abcdef0", "limit=0", "limit=1001", "before=none", "colour=red", "offset=3"),
    ):
        problem = get(operator, f"requests?{query}").json()
        param = query.partition("=")[0]
        code = "unknown_parameter" if param in ("colour", "offset") else "invalid_value"
        assert (problem["status"], problem["param"], problem["code"]) == (400, param, code)


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
    request_records.insert([ended(metered=Metered(unit="second", num_units=5, micro_usd=11))])
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
