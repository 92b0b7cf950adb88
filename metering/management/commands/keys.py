"""``manage.py keys``: make, list, change and revoke API keys."""

from __future__ import annotations

import sys
from argparse import ArgumentParser

from fleet.management import verbs
from fleet.management.backend import ensure_gateways_could_check
from metering.management.commands.budgets import (
    LIMITS_AND_LEFT,
    OF_AN_OWNER,
    add_cap_arguments,
    caps,
)
from metering.nouns import KEYS

LISTED = {
    **verbs.cells("prefix", "account", "name", "status", "scopes", "models"),
    **verbs.cells("expires_at", "last_used_at"),
    **LIMITS_AND_LEFT,
}


def caps_of(run: verbs.Run) -> verbs.Row:
    ensure_gateways_could_check(run.backend)
    return {"budgets": caps(run.options)}


class AddKey(verbs.Add):
    """Only the key goes to standard output."""

    def show(self, run: verbs.Run, row: verbs.Row) -> None:
        run.show(row, row["key"])
        if not run.options["json"]:
            run.stderr.write("This key is shown once. Clients send it as their API key.")


def add_import_arguments(parser: ArgumentParser) -> None:
    add_cap_arguments(parser)
    parser.add_argument(
        "--key", dest="imported", choices=("-",), required=True, help="on standard input"
    )
    parser.set_defaults(key=None)  # that of the server is in HELEXA_API_KEY


class ImportKey(verbs.Add):
    """Reads the key on standard input: command lines are seen by others and kept in histories."""

    def show(self, run: verbs.Run, row: verbs.Row) -> None:
        run.show(row | {"key": None}, f"Imported the key {row['prefix']} of {row['account']}.")


class RevokeKey(verbs.Remove):
    def run(self, run: verbs.Run) -> None:
        key = run.ask("GET", self.path(run))
        if key["revoked_at"] is not None:
            run.show(key, f"{key['prefix']} was revoked on {key['revoked_at']} already.")
        elif self.is_removed(run):
            key = run.ask("GET", self.path(run))
            run.show(key, f"Revoked {key['prefix']} of {key['account']}.")


class Command(verbs.Command):
    help = "API keys: shown once when they are made, known by their prefix from then on."
    subcommands = (
        verbs.List(KEYS, "all keys, with the rest of their caps", columns=LISTED),
        verbs.Show(KEYS, "one key and its budgets", tables={"budgets": OF_AN_OWNER}),
        AddKey(
            KEYS,
            "make a key and print it, once",
            positional=("account",),
            aliases=("create",),
            arguments=add_cap_arguments,
            body=caps_of,
        ),
        ImportKey(
            KEYS,
            "accept a key that was chosen elsewhere",
            name="import",
            positional=("account",),
            arguments=add_import_arguments,
            body=lambda run: caps_of(run) | {"key": sys.stdin.readline().strip()},
        ),
        verbs.Change(KEYS, "change a key; its account and its secret stay"),
        RevokeKey(KEYS, "refuse a key everywhere, for good", name="revoke", aliases=("remove",)),
    )
