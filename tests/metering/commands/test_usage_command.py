"""The command of usage: its groups and its forms."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime

import pytest

from metering.models import Account, UsageHour
from tests.metering.commands.command_output import output, printed_json, refused

pytestmark = pytest.mark.django_db


class TestUsage:
    @pytest.fixture(autouse=True)
    def _hours(self, account: Account) -> None:
        for hour, model, requests, cost in (
            (datetime(2026, 1, 1, 23, tzinfo=UTC), "tiny", 1, 5),
            (datetime(2026, 1, 2, 0, tzinfo=UTC), "tiny", 2, 7),
            (datetime(2026, 1, 2, 23, tzinfo=UTC), "large", 4, 1_000_000),
            (datetime(2026, 1, 3, 0, tzinfo=UTC), "large", 8, 9),
        ):
            UsageHour.objects.create(
                hour=hour,
                account="research",
                key="hx-0123456789",
                model=model,
                requests=requests,
                prompt_tokens=10 * requests,
                cost_micro_usd=cost,
            )
        UsageHour.objects.create(
            hour=datetime(2026, 1, 2, 5, tzinfo=UTC), account="shared", model="tiny", requests=100
        )

    PERIOD = ("--from=2026-01-01", "--to=2026-01-02")

    def test_by_day(self) -> None:
        shown = printed_json("usage", "--account=research", *self.PERIOD)
        assert [(row["day"], row["requests"]) for row in shown["data"]] == [
            ("2026-01-01", 1),
            ("2026-01-02", 6),
        ]
        assert shown["total"]["requests"] == 7
        assert shown["total"]["cost_micro_usd"] == 1_000_012

    def test_by_model_dearest_first(self) -> None:
        shown = printed_json("usage", "--by=model", *self.PERIOD)
        assert [(row["model"], row["requests"]) for row in shown["data"]] == [
            ("large", 4),
            ("tiny", 103),
        ]

    @pytest.mark.parametrize(
        ("by", "names"),
        [("key", {"hx-0123456789", ""}), ("account", {"research", "shared"})],
    )
    def test_by_key_and_account(self, by: str, names: set[str]) -> None:
        shown = printed_json("usage", f"--by={by}", *self.PERIOD)
        assert {row[by] for row in shown["data"]} == names

    def test_for_people(self) -> None:
        text = output("usage", "--by=key", *self.PERIOD)
        assert "From 2026-01-01 to 2026-01-02" in text
        assert "$1.000012" in text
        assert "(no key)" in text
        assert "total" in text

    def test_csv(self) -> None:
        rows = list(csv.DictReader(io.StringIO(output("usage", "--csv", *self.PERIOD))))
        assert [(row["day"], row["requests"], row["cost_micro_usd"]) for row in rows] == [
            ("2026-01-01", "1", "5"),
            ("2026-01-02", "106", "1000007"),
        ]

    def test_refused(self) -> None:
        assert "not a date" in refused("usage", "--from=yesterday")
        assert "comes after" in refused("usage", "--from=2026-01-03", "--to=2026-01-02")
        assert "no account" in refused("usage", "--account=nobody", code=3)
        assert "invalid choice" in refused("usage", "--by=week")
