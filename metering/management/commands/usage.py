"""``manage.py usage``: usage and its cost."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.utils import timezone

from helexa_site.management.base import QuickCommand
from metering import selectors
from metering.money import usd_text
from metering.output import errors_on_one_line, json_text, table_text
from metering.selectors import SUMS, UsageFilter, UsageGroup, UsageRow, UsageSums
from metering.usage_rows import usage_csv, usage_fields


class Command(QuickCommand):
    help = "Usage by day, model, key or account."

    def add_arguments(self, parser: ArgumentParser) -> None:
        groups = [group.value for group in UsageGroup]
        parser.add_argument("--by", choices=groups, default="day", help="default: %(default)s")
        parser.add_argument("--from", dest="first", metavar="DATE", help="first day, UTC")
        parser.add_argument("--to", dest="last", metavar="DATE", help="last day, UTC")
        parser.add_argument("--account", metavar="NAME", help="of this account alone")
        forms = parser.add_mutually_exclusive_group()
        forms.add_argument("--json", action="store_true", help="print JSON")
        forms.add_argument("--csv", action="store_true", help="print CSV")

    def handle(self, *_args: Any, **options: Any) -> None:
        with errors_on_one_line():
            by = UsageGroup(options["by"])
            today = timezone.now().date()
            period = selectors.period_of(options["first"], options["last"], today=today)
            account = options["account"]
            where = UsageFilter(accounts=None if account is None else frozenset({account}))
            rows = selectors.usage_list(by=by, period=period, where=where)
            total = selectors.usage_total(period=period, where=where)
            if account is not None and not rows:
                selectors.account_find(account)
        if options["csv"]:
            self.stdout.write(usage_csv(by, rows), ending="")
        elif options["json"]:
            self.stdout.write(json_text(usage_fields(by, period, rows, total)))
        else:
            self.stdout.write(f"From {period.first} to {period.last} (UTC)\n")
            self.stdout.write(_table(by, rows, total))


def _table(by: UsageGroup, rows: list[UsageRow], total: UsageSums) -> str:
    numbers = SUMS[:-1]
    columns = (by.value, *(name.replace("_", " ") for name in numbers), "cost")
    shown = [
        [
            name or "(no key)",
            *(getattr(sums, number) for number in numbers),
            usd_text(sums.cost_micro_usd),
        ]
        for name, sums in [*((row.name, row.sums) for row in rows), ("total", total)]
    ]
    return table_text(columns, shown)
