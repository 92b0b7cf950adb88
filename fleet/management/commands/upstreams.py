"""``manage.py upstreams``.

A key is read from standard input or from a variable of the environment: command lines are seen by
others and kept in histories.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from dataclasses import replace

from django.core.management.base import CommandError

from fleet.management.backend import ensure_gateways_could_check
from fleet.management.rows import (
    AddRow,
    ChangeRow,
    Columns,
    DoToRow,
    ListRows,
    RemoveRow,
    Row,
    Run,
    ShowRow,
    SubcommandsCommand,
    cells,
    rows_text,
)
from fleet.nouns import UPSTREAMS
from fleet.upstreams.discovery import PRICES

KEY = "key"
FLAG = "leaves_network"
WITHOUT_KEY = replace(
    UPSTREAMS, fields=tuple(field for field in UPSTREAMS.fields if field.name != KEY)
)
PLAIN_FLAGS = replace(
    WITHOUT_KEY, fields=tuple(field for field in WITHOUT_KEY.fields if field.name != FLAG)
)
WORDS = {True: "yes", False: "no", None: "not tested"}
PROBES: Columns = {
    "": lambda probe: probe["what"],
    "works": lambda probe: WORDS[probe["works"]],
    "detail": lambda probe: probe["detail"],
}


def add_key_arguments(parser: ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--key", dest="upstream_key", choices=("-",), help="on standard input")
    source.add_argument(
        "--key-env", metavar="VAR", help="the variable of this command's environment that holds it"
    )
    parser.set_defaults(key=None)  # that of the server is in HELEXA_API_KEY


def key_of(run: Run) -> Row:
    """Raises ``CommandError``."""
    if run.options["upstream_key"] is not None:
        key = sys.stdin.readline().strip()
    elif (variable := run.options["key_env"]) is not None:
        key = os.environ.get(variable, "").strip()
        if not key:
            raise CommandError(f"{variable} is not set")
    else:
        return {}
    ensure_gateways_could_check(run.backend)
    return {KEY: key}


class AddUpstream(AddRow):
    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        add_key_arguments(parser)
        parser.add_argument(
            "--leaves-network", action="store_true", help="its requests leave your network"
        )

    def body(self, run: Run) -> Row:
        return super().body(run) | {FLAG: run.options["leaves_network"]} | key_of(run)

    def show(self, run: Run, row: Row) -> None:
        name = row["name"]
        run.show(row, f"Made the upstream {name}. upstreams test {name} shows what works of it.")


class ChangeUpstream(ChangeRow):
    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        add_key_arguments(parser)

    def body(self, run: Run) -> Row:
        return super().body(run) | key_of(run)


class TestUpstream(DoToRow):
    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--model", help="which of its models; else the first that chats, by its name"
        )
        parser.add_argument(
            "--paid",
            action="store_true",
            help="also try moderation, speech, transcription and image generation, one request "
            "each, which may cost money",
        )

    def body(self, run: Run) -> Row:
        given = {"model": run.options["model"], "paid": run.options["paid"] or None}
        return {name: value for name, value in given.items() if value is not None}

    def text(self, run: Run, answer: Row) -> str:
        of_model = f"\n\nTested with {answer['model']}." if answer["model"] else ""
        return rows_text(PROBES, answer["probes"]) + of_model


class Command(SubcommandsCommand):
    help = "Upstreams: endpoints of others that answer requests."
    subcommands = (
        ListRows(
            UPSTREAMS,
            "all upstreams",
            columns=cells("name", "url", "dialect", "has_key", "leaves_network"),
        ),
        ShowRow(
            UPSTREAMS,
            "one upstream and the models that it listed when it was last tested",
            tables={"models": cells("id", "context_tokens", "max_output_tokens", *PRICES)},
        ),
        AddUpstream(PLAIN_FLAGS, "name an endpoint of others", positional=("name", "url")),
        ChangeUpstream(WITHOUT_KEY, "change an upstream, or its key"),
        TestUpstream(
            UPSTREAMS, "show what works of it, and record the models it lists", name="test"
        ),
        RemoveRow(UPSTREAMS, "remove an upstream and its key"),
    )
