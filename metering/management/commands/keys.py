"""``manage.py keys``: make, list, change and revoke API keys."""

from __future__ import annotations

import sys
from argparse import ArgumentParser

from fleet.management.backend import ensure_gateways_could_check
from fleet.management.rows import (
    AddRow,
    ChangeRow,
    ListRows,
    RemoveRow,
    Row,
    Run,
    ShowRow,
    SubcommandsCommand,
    cells,
    removed,
)
from metering.management.caps import OF_AN_OWNER, add_cap_arguments, caps, caps_text, limits_text
from metering.nouns import KEYS

LISTED = {
    **cells("prefix", "account", "name", "status", "scopes", "models"),
    **cells("expires_at", "last_used_at"),
    "limits": limits_text,
    "left": lambda row: caps_text(row["budgets"]),
}


class AddKey(AddRow):
    """Only the key goes to standard output."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        add_cap_arguments(parser)

    def body(self, run: Run) -> Row:
        """Raises ``CommandError``, ``MeteringValueError``."""
        ensure_gateways_could_check(run.backend)
        return super().body(run) | {"budgets": caps(run.options)}

    def show(self, run: Run, row: Row) -> None:
        run.show(row, row["key"])
        if not run.options["json"]:
            run.stderr.write("This key is shown once. Clients send it as their API key.")


class ImportKey(AddKey):
    """Reads the key on standard input: command lines are seen by others and kept in histories."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--key", dest="imported", choices=("-",), required=True, help="on standard input"
        )
        parser.set_defaults(key=None)  # that of the server is in HELEXA_API_KEY

    def body(self, run: Run) -> Row:
        return super().body(run) | {"key": sys.stdin.readline().strip()}

    def show(self, run: Run, row: Row) -> None:
        run.show(row | {"key": None}, f"Imported the key {row['prefix']} of {row['account']}.")


class RevokeKey(RemoveRow):
    """Prints when the key was revoked before."""

    def run(self, run: Run) -> None:
        path = self.path(run)
        key = run.backend.ask("GET", path)
        if key["revoked_at"] is not None:
            text = f"{key['prefix']} was revoked on {key['revoked_at']} already."
            run.show(key, text)
        elif removed(run, path):
            key = run.backend.ask("GET", path)
            run.show(key, f"Revoked {key['prefix']} of {key['account']}.")


class Command(SubcommandsCommand):
    help = "API keys: shown once when they are made, known by their prefix from then on."
    subcommands = (
        ListRows(KEYS, "all keys, with the rest of their caps", columns=LISTED),
        ShowRow(KEYS, "one key and its budgets", tables={"budgets": OF_AN_OWNER}),
        AddKey(KEYS, "make a key and print it, once", positional=("account",), aliases=("create",)),
        ImportKey(
            KEYS, "accept a key that was chosen elsewhere", name="import", positional=("account",)
        ),
        ChangeRow(KEYS, "change a key; its account and its secret stay"),
        RevokeKey(KEYS, "refuse a key everywhere, for good", name="revoke", aliases=("remove",)),
    )
