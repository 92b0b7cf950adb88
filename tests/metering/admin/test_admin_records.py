"""The operator's pages of budgets and the ledger."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.test import Client

from metering import services
from metering.actor import COMMAND
from metering.models import (
    Account,
    Budget,
    LedgerEntry,
    UsageHour,
)
from tests.metering.admin.admin_support import newest, page, post, url

pytestmark = pytest.mark.django_db


class TestBudgets:
    def test_on_a_key(self, operator: Client, account: Account) -> None:
        key = services.key_create(actor=COMMAND, account=account).row
        post(
            operator,
            "budget",
            "add",
            key=key.prefix,
            unit="micro_usd",
            amount="0.30",
            window="seconds",
            window_s="3600",
        )
        budget = Budget.objects.get()
        assert (budget.key_id, budget.cap, budget.window_s) == (key.prefix, 300_000, 3600)
        shown = page(operator, "budget")
        assert "$0.30" in shown and f"/requests/?key={key.prefix}" in shown
        post(operator, "budget", "change", budget.pk, unit="tokens", amount="0.50", window="day")
        budget.refresh_from_db()
        assert (budget.unit, budget.cap, budget.window, budget.window_s) == (
            "micro_usd",
            500_000,
            "day",
            None,
        )
        assert newest()[1] == "budget.update"

    @pytest.mark.parametrize(
        ("form", "message"),
        [
            ({"unit": "tokens", "amount": "5", "window": "day"}, "either an account"),
            (
                {"account": "research", "unit": "tokens", "amount": "0", "window": "day"},
                "positive whole number",
            ),
            (
                {"account": "research", "unit": "tokens", "amount": "5", "window": "seconds"},
                "how many seconds",
            ),
            (
                {"account": "research", "unit": "micro_usd", "amount": "x", "window": "day"},
                "not an amount",
            ),
        ],
    )
    def test_refused(self, operator: Client, form: dict[str, str], message: str) -> None:
        response = operator.post(url("budget", "add"), form)
        assert message in response.content.decode()
        assert not Budget.objects.exists()


class TestRecords:
    @pytest.fixture(autouse=True)
    def _entries(self, operator: Client) -> None:
        used = {
            "account": "research",
            "key": "hx-0123456789",
            "model": "tiny",
            "prompt_tokens": 10,
            "cached_tokens": 0,
            "completion_tokens": 5,
            "reasoning_tokens": 0,
            "cost_micro_usd": 12_300,
        }
        at = datetime(2026, 1, 1, 5, tzinfo=UTC)
        LedgerEntry.objects.create(
            request_id="chatcmpl-1",
            at=at,
            endpoint="chat",
            outcome="finished",
            duration_ms=5,
            **used,
        )
        UsageHour.objects.create(hour=at, requests=1, **used)

    @pytest.mark.parametrize("noun", ["ledgerentry", "usagehour"])
    def test_money_in_dollars(self, operator: Client, noun: str) -> None:
        assert "$0.0123" in page(operator, noun)

    def test_one_entry(self, operator: Client) -> None:
        entry = LedgerEntry.objects.get()
        shown = page(operator, "ledgerentry", "change", entry.pk)
        assert f"/requests/{entry.request_id}" in shown
        assert "chatcmpl-1" in shown
        assert "$0.0123" in shown
        assert operator.post(url("ledgerentry", "change", entry.pk), {}).status_code == 403
        assert operator.post(url("ledgerentry", "delete", entry.pk), {}).status_code == 403

    def test_search(self, operator: Client) -> None:
        for query, is_there in (("chatcmpl-1", True), ("chatcmpl-2", False)):
            response = operator.get(url("ledgerentry", "changelist"), {"q": query})
            assert ("hx-0123456789" in response.content.decode()) is is_there
