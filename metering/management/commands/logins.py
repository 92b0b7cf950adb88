"""``manage.py logins``: shows and clears counts of failed logins."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from helexa_site.management.base import QuickCommand
from helexa_site.models import LoginAttempt
from metering.output import errors_on_one_line, json_text, table_text

COLUMNS = ("username", "address", "failures", "last_at")


class Command(QuickCommand):
    help = "failed logins that are counted, by user and address; --reset lets them try again"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--user", help="those of this user alone")
        parser.add_argument("--address", help="those from this address alone")
        parser.add_argument("--reset", action="store_true", help="forget them")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *_args: Any, **options: Any) -> None:
        with errors_on_one_line():
            attempts = LoginAttempt.objects.order_by("-last_at")
            for name, field in (("user", "username"), ("address", "address")):
                if options[name] is not None:
                    attempts = attempts.filter(**{field: options[name]})
            if options["reset"]:
                if options["json"]:
                    raise CommandError("--reset prints no JSON")
                count, _ = attempts.delete()
                self.stdout.write(f"{count} forgotten")
                return
            rows = list(attempts.values(*COLUMNS))
            if options["json"]:
                self.stdout.write(json_text(rows))
            else:
                cells = [[row[name] for name in COLUMNS] for row in rows]
                self.stdout.write(table_text(COLUMNS, cells))
