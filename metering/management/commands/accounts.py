"""``manage.py accounts``: make, list and show the accounts that pay."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.forms.models import model_to_dict

from helexa_site.program import program
from helexa_site.quick_command import QuickCommand
from metering import selectors, services
from metering.actor import COMMAND
from metering.key_status import key_status
from metering.management.output import (
    json_text,
    limits_text,
    table_text,
    told,
    window_text,
)
from metering.models import Account, Budget
from metering.money import amount_words


class Command(QuickCommand):
    help = f"Accounts: who pays. Their keys: {program()} keys."

    def add_arguments(self, parser: ArgumentParser) -> None:
        commands = parser.add_subparsers(dest="command", required=True)
        create = commands.add_parser("create", help="make an account")
        create.add_argument("name", metavar="NAME", help="a lower-case slug, as in research-team")
        create.add_argument("--description", default="")
        create.add_argument("--weight", type=int, default=1, help="its share of a busy engine")
        create.add_argument("--rpm", type=int, metavar="N", help="requests per minute")
        create.add_argument("--tpm", type=int, metavar="N", help="tokens per minute")
        create.add_argument("--max-concurrent", type=int, metavar="N", help="requests at once")
        show = commands.add_parser("show", help="an account, its people, budgets and keys")
        show.add_argument("name", metavar="NAME")
        listing = commands.add_parser("list", help="all accounts")
        for command in (create, show, listing):
            command.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *_args: Any, **options: Any) -> None:
        with told():
            {"create": self._create, "list": self._list, "show": self._show}[options["command"]](
                options
            )

    def _create(self, options: dict[str, Any]) -> None:
        account = services.account_create(
            actor=COMMAND,
            name=options["name"],
            description=options["description"],
            weight=options["weight"],
            requests_per_minute=options["rpm"],
            tokens_per_minute=options["tpm"],
            max_concurrent=options["max_concurrent"],
        )
        if options["json"]:
            self.stdout.write(json_text(_described(account)))
            return
        self.stdout.write(f"Made the account {account.name}.")
        self.stdout.write(f"A key for it: {program()} keys create {account.name}")

    def _list(self, options: dict[str, Any]) -> None:
        accounts = [_described(account) for account in Account.objects.order_by("name")]
        if options["json"]:
            self.stdout.write(json_text(accounts))
            return
        budgets = selectors.budgets_by_account(now_unix_s=time.time())
        columns = ("name", "enabled", "weight", "keys", "people", "description")
        rows = [
            [
                *(account[column] for column in columns),
                limits_text(account),
                selectors.left_words(budgets.get(account["name"], ())),
            ]
            for account in accounts
        ]
        self.stdout.write(table_text((*columns, "limits", "left"), rows))

    def _show(self, options: dict[str, Any]) -> None:
        account = selectors.account_find(options["name"])
        now_s = time.time()
        rows = Budget.objects.filter(account=account).order_by("id")
        budgets = [selectors.budget_status(row, now_unix_s=now_s) for row in rows]
        members = [
            (member.user.get_username(), member.role)
            for member in account.memberships.select_related("user")
        ]
        if options["json"]:
            shown = _described(account) | {
                "members": [{"user": user, "role": role} for user, role in members],
                "budgets": [asdict(budget) for budget in budgets],
                "key_budgets": [
                    asdict(budget)
                    for budget in selectors.key_budgets(
                        keys=list(account.keys.values_list("prefix", flat=True)), now_unix_s=now_s
                    )
                ],
            }
            self.stdout.write(json_text(shown))
            return
        self.stdout.write(
            table_text(("", ""), [[name, value] for name, value in _described(account).items()])
        )
        if members:
            self.stdout.write("\n" + table_text(("user", "role"), members))
        if budgets:
            shown_budgets = [
                [
                    budget.id,
                    window_text(budget),
                    *(
                        amount_words(budget.unit, amount)
                        for amount in (budget.cap, budget.spent, budget.reserved, budget.left)
                    ),
                ]
                for budget in budgets
            ]
            columns = ("budget", "window", "cap", "spent", "reserved", "left")
            self.stdout.write("\n" + table_text(columns, shown_budgets))
        if keys := list(account.keys.order_by("created_at")):
            capped = selectors.budgets_by_key(keys=[key.prefix for key in keys], now_unix_s=now_s)
            shown_keys = [
                (
                    key.prefix,
                    key.name,
                    key_status(key),
                    limits_text(model_to_dict(key)),
                    selectors.left_words(capped.get(key.prefix, ())),
                )
                for key in keys
            ]
            self.stdout.write(
                "\n" + table_text(("key", "name", "status", "limits", "left"), shown_keys)
            )


def _described(account: Account) -> dict[str, Any]:
    return {
        "name": account.name,
        "description": account.description,
        "enabled": account.enabled,
        "weight": account.weight,
        "requests_per_minute": account.requests_per_minute,
        "tokens_per_minute": account.tokens_per_minute,
        "max_concurrent": account.max_concurrent,
        "keys": account.keys.count(),
        "people": account.memberships.count(),
        "created_at": account.created_at.isoformat(timespec="seconds"),
    }
