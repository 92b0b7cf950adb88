"""``manage.py keys``: make, list and revoke API keys."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError
from django.utils import timezone

from helexa_site.program import program
from helexa_site.quick_command import QuickCommand
from metering import selectors, services
from metering.actor import COMMAND
from metering.management.key_arguments import caps, expiry, micro_usd, words
from metering.management.output import json_text, limits_text, table_text, told
from metering.models import ApiKey
from metering.principal import RateLimits, Scope
from metering.services.keys import DEFAULT_SCOPES


class Command(QuickCommand):
    help = "API keys: shown once when they are made, known by their prefix from then on."

    def add_arguments(self, parser: ArgumentParser) -> None:
        commands = parser.add_subparsers(dest="command", required=True)
        create = commands.add_parser("create", help="make a key and print it, once")
        _add_create_arguments(create)
        listing = commands.add_parser("list", help="all keys")
        listing.add_argument("--account", metavar="NAME", help="of this account alone")
        revoke = commands.add_parser("revoke", help="refuse a key everywhere, for good")
        revoke.add_argument("prefix", metavar="PREFIX", help="as in hx-0a1b2c3d4e")
        for command in (create, listing, revoke):
            command.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *_args: Any, **options: Any) -> None:
        with told():
            {"create": self._create, "list": self._list, "revoke": self._revoke}[
                options["command"]
            ](options)

    def _create(self, options: dict[str, Any]) -> None:
        if not settings.CONFIG.secret_key_is_kept:
            raise CommandError(
                "No gateway could check this key: start one here first, set HELEXA_SECRET_KEY to "
                f"theirs, or HELEXA_DATA_DIR to the directory that {program()} serve uses"
            )
        created = services.key_create(
            actor=COMMAND,
            account=selectors.account_find(options["account"]),
            name=options["name"],
            scopes=words(options["scopes"]),
            model_names=words(options["models"]),
            expires_at=options["expires"],
            limits=RateLimits(
                requests_per_minute=options["rpm"],
                tokens_per_minute=options["tpm"],
                max_concurrent=options["max_concurrent"],
            ),
            caps=caps(options),
        )
        if options["json"]:
            self.stdout.write(json_text({"key": created.key} | _described(created.row)))
            return
        self.stdout.write(created.key)
        self.stderr.write("This key is shown once. Clients send it as their API key.")

    def _list(self, options: dict[str, Any]) -> None:
        rows = ApiKey.objects.order_by("account", "created_at")
        if options["account"]:
            rows = rows.filter(account=selectors.account_find(options["account"]))
        found = [_described(row) for row in rows]
        if options["json"]:
            self.stdout.write(json_text(found))
            return
        budgets = selectors.budgets_by_key(
            keys=[key["prefix"] for key in found], now_unix_s=time.time()
        )
        columns = ("prefix", "account", "name", "status", "scopes", "models", "last_used_at")
        shown = [
            [
                *_cells(key, columns),
                limits_text(key),
                selectors.left_words(budgets.get(key["prefix"], ())),
            ]
            for key in found
        ]
        self.stdout.write(table_text((*columns, "limits", "left"), shown))

    def _revoke(self, options: dict[str, Any]) -> None:
        key = selectors.key_find(options["prefix"])
        revoked = services.key_revoke(actor=COMMAND, key=key)
        if options["json"]:
            self.stdout.write(json_text(_described(key)))
        elif revoked:
            self.stdout.write(f"Revoked {key.prefix} of {key.account_id}.")
        else:
            self.stdout.write(f"{key.prefix} was revoked on {_moment(key.revoked_at)} already.")


def _add_create_arguments(create: ArgumentParser) -> None:
    create.add_argument("account", metavar="ACCOUNT", help="who pays")
    create.add_argument("--name", default="", help="what it is for")
    create.add_argument(
        "--scopes",
        default=",".join(DEFAULT_SCOPES),
        help=f"of {', '.join(scope.value for scope in Scope)} (default: %(default)s)",
    )
    create.add_argument("--models", default="", help="names of the catalogue; default: all")
    create.add_argument("--expires", type=expiry, metavar="WHEN", help="30d, 12h or 2027-01-31")
    create.add_argument("--cap-tokens", type=int, metavar="N", help="hard cap in tokens")
    create.add_argument("--cap-usd", type=micro_usd, metavar="X", help="hard cap in US dollars")
    create.add_argument("--window", help="of the caps: balance (default), day, month or seconds")
    create.add_argument("--rpm", type=int, metavar="N", help="requests per minute")
    create.add_argument("--tpm", type=int, metavar="N", help="tokens per minute")
    create.add_argument("--max-concurrent", type=int, metavar="N", help="requests at once")


def _described(row: ApiKey) -> dict[str, Any]:
    return {
        "prefix": row.prefix,
        "account": row.account_id,
        "name": row.name,
        "status": status_of(row),
        "scopes": row.scopes,
        "models": row.model_names,
        "expires_at": _moment(row.expires_at),
        "revoked_at": _moment(row.revoked_at),
        "last_used_at": _moment(row.last_used_at),
        "created_at": _moment(row.created_at),
        "created_by": row.created_by,
        "requests_per_minute": row.requests_per_minute,
        "tokens_per_minute": row.tokens_per_minute,
        "max_concurrent": row.max_concurrent,
        "budgets": [
            asdict(selectors.budget_status(budget, now_unix_s=time.time()))
            for budget in row.budgets.order_by("id")
        ],
    }


def status_of(row: ApiKey) -> str:
    if row.revoked_at is not None:
        return "revoked"
    if row.expires_at is not None and row.expires_at <= timezone.now():
        return "expired"
    return "active"


def _cells(key: dict[str, Any], columns: tuple[str, ...]) -> list[Any]:
    cells = [key[column] for column in columns]
    return [" ".join(cell) if isinstance(cell, list) else cell for cell in cells]


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds")
