"""``/api/usage``: a key, an owner, a viewer, staff and a stranger, as JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from metering.models import Account, UsageHour
from metering.services import CreatedKey
from tests.metering.api.api_support import get, ok, person, refused

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("listens_elsewhere")]

PERIOD = "from=2026-01-01&to=2026-01-02"


@pytest.fixture
def hours(account: Account, made: CreatedKey) -> None:
    """Writes hours of the key, of another key of its account, and of another account."""
    for owner, key, model, requests in (
        ("research", made.row.prefix, "tiny", 1),
        ("research", made.row.prefix, "large", 2),
        ("research", "hx-another000", "tiny", 4),
        ("shared", "", "tiny", 8),
    ):
        UsageHour.objects.create(
            hour=datetime(2026, 1, 1, 5, tzinfo=UTC),
            account=owner,
            key=key,
            model=model,
            requests=requests,
            cost_micro_usd=requests,
        )


@pytest.mark.usefixtures("hours")
class TestUsage:
    def total(self, client: Client, query: str = "", key: str | None = None) -> int:
        shown = ok(client, f"usage?{PERIOD}{query}", key)
        return int(shown["total"]["requests"])

    def test_a_key_sees_its_own(self, client: Client, made: CreatedKey) -> None:
        shown = ok(client, f"usage?by=model&{PERIOD}", made.key)
        assert [(row["model"], row["requests"]) for row in shown["data"]] == [
            ("large", 2),
            ("tiny", 1),
        ]
        assert (shown["by"], shown["from"], shown["to"]) == ("model", "2026-01-01", "2026-01-02")
        assert shown["total"]["cost_micro_usd"] == 3
        assert self.total(client, "&account=research", made.key) == 3
        assert self.total(client, f"&key={made.row.prefix}", made.key) == 3
        for query, code in (
            ("account=shared", "account_not_allowed"),
            ("account=nowhere", "account_not_allowed"),
            ("key=hx-another000", "key_not_allowed"),
        ):
            assert refused(client, f"usage?{query}", made.key) == (403, code)

    @pytest.mark.parametrize("role", ["owner", "member", "viewer"])
    def test_a_person_sees_their_account(
        self, account: Account, made: CreatedKey, role: str
    ) -> None:
        client = person("alice", account, role)
        assert self.total(client) == 7
        assert self.total(client, f"&key={made.row.prefix}") == 3
        assert refused(client, "usage?account=shared") == (403, "account_not_allowed")

    def test_a_stranger_sees_nothing(self) -> None:
        client = person("eve")
        assert self.total(client) == 0
        assert refused(client, "usage?account=research") == (403, "account_not_allowed")

    def test_staff_see_everything(self) -> None:
        client = person("root", is_staff=True)
        assert self.total(client) == 15
        assert self.total(client, "&account=shared") == 8
        assert refused(client, "usage?account=nowhere") == (404, "account_not_found")

    def test_the_shared_key_sees_its_account(self, client: Client, settings: Any) -> None:
        settings.CONFIG = replace(settings.CONFIG, api_key="a shared key")
        assert self.total(client, key="a shared key") == 8

    @pytest.mark.parametrize(
        ("path", "headers"),
        [("usage?format=csv&", {}), ("usage?", {"accept": "text/csv"})],
    )
    def test_csv(
        self, client: Client, made: CreatedKey, path: str, headers: dict[str, str]
    ) -> None:
        response = get(client, f"{path}by=model&{PERIOD}", made.key, **headers)
        assert response.status_code == 200
        assert response["Content-Type"] == "text/csv; charset=utf-8"
        rows = list(csv.DictReader(io.StringIO(response.content.decode())))
        assert [(row["model"], row["requests"]) for row in rows] == [("large", "2"), ("tiny", "1")]

    def test_a_refusal_of_csv_is_a_problem_all_the_same(self, client: Client) -> None:
        response = client.get("/api/usage?format=csv")
        assert response.status_code == 401
        assert json.loads(response.content)["code"] == "invalid_api_key"

    def test_pages(self, client: Client, made: CreatedKey) -> None:
        first = ok(client, f"usage?by=model&limit=1&{PERIOD}", made.key)
        assert (first["num_rows"], len(first["data"])) == (2, 1)
        assert first["total"]["requests"] == 3, "of all pages"
        path = first["next"].removeprefix("http://testserver/api/")
        second = ok(client, path, made.key)
        assert second["next"] is None
        assert {row["model"] for row in first["data"] + second["data"]} == {"tiny", "large"}

    def test_thirty_days_by_default(self, client: Client, made: CreatedKey) -> None:
        shown = ok(client, "usage", made.key)
        first, last = (datetime.fromisoformat(shown[name]) for name in ("from", "to"))
        assert last - first == timedelta(days=29)
        assert shown["data"] == []
