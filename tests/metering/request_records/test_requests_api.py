"""``/api/requests`` and the command over it: who sees which requests, and every filter."""

from __future__ import annotations

import csv
import io
import json
import time
import uuid
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client

from helexa_site.exit_codes import ExitCode
from metering.models import Account
from metering.request_records import rows
from metering.services import CreatedKey
from tests.cases import each_case
from tests.metering.api.api_support import get, ok, person, refused
from tests.metering.request_records.records import ended

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("listens_elsewhere")]

HOUR_S = 3600.0


def record(**changes: Any) -> str:
    """Its id."""
    request_id = changes.pop("request_id", "") or uuid.uuid4().hex
    rows.insert([ended(request_id, **{"ended_unix_s": time.time(), **changes})])
    return str(request_id)


def ids(shown: Any) -> list[str]:
    return [row["id"] for row in shown["data"]]


class TestWhoSeesWhat:
    @pytest.fixture
    def of(self, account: Account, made: CreatedKey) -> dict[str, str]:
        return {
            "key": record(account="research", key=made.row.prefix),
            "teammate": record(account="research", key="hx-another000"),
            "other": record(account="other", key="hx-others0000"),
            "unknown": record(account="", key="", status=401, outcome="invalid_api_key"),
        }

    def test_a_key_sees_its_own(self, client: Client, made: CreatedKey, of: dict[str, str]) -> None:
        assert ids(ok(client, "requests", made.key)) == [of["key"]]
        assert ids(ok(client, "requests?account=other", made.key)) == []
        assert ok(client, f"requests/{of['key']}", made.key)["id"] == of["key"]
        for name in ("teammate", "other", "unknown"):
            assert refused(client, f"requests/{of[name]}", made.key) == (404, "request_not_found")

    def test_members_see_their_accounts(self, account: Account, of: dict[str, str]) -> None:
        member = person("mia", account, role="viewer")
        assert set(ids(ok(member, "requests"))) == {of["key"], of["teammate"]}
        assert ids(ok(person("nell"), "requests")) == []

    def test_operators_see_all(self, of: dict[str, str]) -> None:
        assert set(ids(ok(person("olga", is_staff=True), "requests"))) == set(of.values())

    def test_a_key_that_reads_accounts_sees_all(
        self, client: Client, account: Account, of: dict[str, str]
    ) -> None:
        from metering.actor import COMMAND
        from metering.services import key_create

        for scopes in (["usage:read", "accounts:read"], ["accounts:read"]):
            name = " and ".join(scopes)
            key = key_create(actor=COMMAND, account=account, name=name, scopes=scopes).key
            assert set(ids(ok(client, "requests", key))) == set(of.values())
            assert ok(client, f"requests/{of['unknown']}", key)["status"] == 401


class TestFilters:
    @pytest.fixture
    def operator(self, account: Account) -> Client:
        return person("olga", is_staff=True)

    def test_a_row(self, operator: Client, made: CreatedKey) -> None:
        request_id = record(
            account="research",
            key=made.row.prefix,
            status=503,
            outcome="neuron_lost",
            error_message="It went away.",
            end_user="ann",
        )
        (row,) = ok(operator, "requests")["data"]
        assert (row["id"], row["key"], row["key_name"]) == (request_id, made.row.prefix, "ci")
        assert (row["status"], row["outcome"], row["code"]) == (503, "failed", "neuron_lost")
        assert (row["message"], row["end_user"]) == ("It went away.", "ann")
        assert (row["model_asked"], row["model"], row["neuron"]) == ("gpt-4o", "tiny", "beast")
        assert row == ok(operator, f"requests/{uuid.UUID(request_id)}")

    @pytest.mark.parametrize(
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
    def test_each(self, operator: Client, query: str, changes: dict[str, Any]) -> None:
        wanted = record(**changes)
        record(request_id="0" * 32)
        assert ids(ok(operator, f"requests?{query}")) == [wanted]

    def test_what_was_answered_and_what_is_recent(self, operator: Client) -> None:
        record(ended_unix_s=time.time() - 3 * HOUR_S, status=500, outcome="internal_error")
        wanted = record()
        for query in ("outcome=answered", "status=200", "since=2h", "since=2020-01-01&status=200"):
            assert ids(ok(operator, f"requests?{query}")) == [wanted], query

    def test_a_key_by_its_prefix_and_its_name(self, operator: Client, made: CreatedKey) -> None:
        record(account="research", key="hx-another000")
        wanted = record(account="research", key=made.row.prefix)
        for word in ("ci", made.row.prefix):
            assert ids(ok(operator, f"requests?key={word}")) == [wanted]
        assert ids(ok(operator, "requests?key=hx-unknown000")) == []

    @each_case(
        ("query", "param"),
        [
            ("status=5x3", "status"),
            ("outcome=lost", "outcome"),
            ("since=yesterday", "since"),
            ("until=0001-01-01", "until"),
            ("id=xyz", "id"),
            ("id=abcdef0", "id"),
            ("limit=0", "limit"),
            ("limit=1001", "limit"),
            ("before=none", "before"),
        ],
    )
    def test_bad_values(self, operator: Client, query: str, param: str) -> None:
        problem = get(operator, f"requests?{query}").json()
        assert (problem["status"], problem["param"]) == (400, param)
        assert problem["code"] == "invalid_value"

    def test_unknown_parameters(self, operator: Client) -> None:
        for query in ("colour=red", "offset=3"):
            assert refused(operator, f"requests?{query}") == (400, "unknown_parameter")

    def test_pages(self, operator: Client) -> None:
        now_s = time.time()
        made = [record(ended_unix_s=now_s - age, model="m") for age in (3, 2, 2, 1)]
        newest_first = [made[3], made[2], made[1], made[0]]
        first = ok(operator, "requests?limit=2&model=m")
        assert ids(first) == newest_first[:2]
        path = first["next"].partition("/api/")[2]
        second = ok(operator, path)
        assert ids(second) == newest_first[2:]
        assert second["next"] is None

    def test_csv(self, operator: Client) -> None:
        request_id = record(end_user="=cmd()")
        response = get(operator, "requests?format=csv")
        assert response["Content-Disposition"] == 'attachment; filename="requests.csv"'
        (row,) = csv.DictReader(io.StringIO(response.content.decode()))
        assert (row["id"], row["end_user"], row["prompt_tokens"]) == (request_id, "'=cmd()", "40")


class TestCommand:
    def output(self, *words: str) -> tuple[str, str]:
        printed, hints = io.StringIO(), io.StringIO()
        call_command("requests", *words, stdout=printed, stderr=hints)
        return printed.getvalue(), hints.getvalue()

    def test_list_and_show(self) -> None:
        refused_id = record(status=429, outcome="insufficient_quota", error_message="Spent.")
        record()
        text, hints = self.output("list", "--code", "insufficient_quota")
        assert refused_id in text and "refused" in text and hints == ""
        (row,) = json.loads(self.output("list", "--outcome", "refused", "--json")[0])
        assert row["message"] == "Spent."
        assert "Spent." in self.output("show", refused_id)[0]
        assert "/v1/chat/completions" in text

    def test_show_by_the_beginning_of_an_id(self) -> None:
        for number in ("01", "02"):
            record(request_id=f"abcdef00{number}" + 22 * "0")
        record(request_id="abcdef99" + 24 * "0", outcome="insufficient_quota", status=429)
        assert "insufficient_quota" in self.output("show", "abcdef99")[0]
        assert "abcdef0001" in self.output("show", "ABCDEF00-01")[0]
        with pytest.raises(CommandError, match="beginning of several ids"):
            self.output("show", "abcdef00")
        for word in ("abcdef9", "nothing", "abcdef98"):
            with pytest.raises(CommandError, match="no record of a request"):
                self.output("show", word)

    def test_one_page(self) -> None:
        for _ in range(3):
            record()
        text, hints = self.output("list", "--limit", "2")
        assert text.count("gpt-4o") + text.count("tiny") == 2
        assert "There are older ones" in hints

    def test_none(self) -> None:
        with pytest.raises(CommandError) as caught:
            self.output("show", "0" * 32)
        assert caught.value.returncode == ExitCode.NOT_FOUND
