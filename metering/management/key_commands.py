"""The subcommands of ``manage.py keys``."""

from __future__ import annotations

import sys
from argparse import ArgumentParser

from django.conf import settings
from django.core.management.base import CommandError

from fleet.management.backend import LocalBackend
from fleet.management.rows import (
    AddRow,
    ChangeRow,
    ListRows,
    RemoveRow,
    Row,
    ShowRow,
    cells,
    removed,
    row_id_of,
    row_path,
)
from fleet.management.subcommands import Run
from helexa_site.program import program
from metering.management.budget_commands import OF_AN_OWNER, caps_text
from metering.management.key_arguments import add_cap_arguments, caps
from metering.management.output import limits_text
from metering.nouns import KEYS

LISTED = {
    **cells("prefix", "account", "name", "status", "scopes", "models"),
    **cells("expires_at", "last_used_at"),
    "limits": limits_text,
    "left": lambda row: caps_text(row["budgets"]),
}


class AddKey(AddRow):
    """The key alone goes to standard output."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        add_cap_arguments(parser)

    def body(self, run: Run) -> Row:
        """Raises ``CommandError``, ``MeteringValueError``."""
        ensure_gateways_could_check(run)
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
        path = row_path(self.noun, row_id_of(self.noun, run.options))
        key = run.backend.ask("GET", path)
        if key["revoked_at"] is not None:
            text = f"{key['prefix']} was revoked on {key['revoked_at']} already."
            run.show(key, text)
        elif removed(run, path):
            key = run.backend.ask("GET", path)
            run.show(key, f"Revoked {key['prefix']} of {key['account']}.")


def ensure_gateways_could_check(run: Run) -> None:
    """Raises ``CommandError`` where this process signs and seals with a secret key of its own."""
    if isinstance(run.backend, LocalBackend) and not settings.CONFIG.secret_key_is_kept:
        raise CommandError(
            "No gateway could read this key: start one here first, set HELEXA_SECRET_KEY to "
            f"theirs, or HELEXA_DATA_DIR to the directory that {program()} serve uses"
        )


SUBCOMMANDS = (
    ListRows(noun=KEYS, columns=LISTED, help="all keys, with the rest of their caps"),
    ShowRow(noun=KEYS, help="one key and its budgets", tables={"budgets": OF_AN_OWNER}),
    AddKey(
        noun=KEYS,
        help="make a key and print it, once",
        positional=("account",),
        aliases=("create",),
    ),
    ImportKey(
        noun=KEYS,
        name="import",
        help="accept a key that was chosen elsewhere",
        positional=("account",),
    ),
    ChangeRow(noun=KEYS, help="change a key; its account and its secret stay"),
    RevokeKey(
        noun=KEYS, help="refuse a key everywhere, for good", name="revoke", aliases=("remove",)
    ),
)
