"""The subcommands of ``manage.py upstreams``.

A key is read from standard input or from a variable of the environment: command lines are seen by
others and kept in histories.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from dataclasses import dataclass, replace

from django.core.management.base import CommandError

from fleet.management.rows import (
    AddRow,
    ChangeRow,
    ListRows,
    RemoveRow,
    Row,
    ShowRow,
    add_id_argument,
    cells,
    row_path,
    rows_text,
)
from fleet.management.subcommands import Run
from fleet.nouns import Noun
from fleet.nouns.of_fleet import UPSTREAMS
from fleet.upstreams.discovery import PRICES
from metering.management.key_commands import ensure_gateways_could_check

KEY = "key"
FLAG = "leaves_network"
WITHOUT_KEY = replace(
    UPSTREAMS, fields=tuple(field for field in UPSTREAMS.fields if field.name != KEY)
)
PLAIN_FLAGS = replace(
    WITHOUT_KEY, fields=tuple(field for field in WITHOUT_KEY.fields if field.name != FLAG)
)
WORDS = {True: "yes", False: "no", None: "not tested"}


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
    ensure_gateways_could_check(run)
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


@dataclass(frozen=True, kw_only=True)
class TestUpstream:
    noun: Noun
    help: str
    name: str = "test"

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_id_argument(parser, self.noun)
        parser.add_argument(
            "--model", help="which of its models; else the first that chats, by its name"
        )
        parser.add_argument(
            "--paid",
            action="store_true",
            help="also try moderation, speech, transcription and image generation, one request "
            "each, which may cost money",
        )

    def run(self, run: Run) -> None:
        body: Row
        path = f"{row_path(self.noun, run.options['id'])}/test"
        model = run.options["model"]
        body = {} if model is None else {"model": model}
        if run.options["paid"]:
            body["paid"] = True
        found = run.backend.ask("POST", path, body)
        columns = {
            "": lambda probe: probe["what"],
            "works": lambda probe: WORDS[probe["works"]],
            "detail": lambda probe: probe["detail"],
        }
        of_model = f"\n\nTested with {found['model']}." if found["model"] else ""
        run.show(found, rows_text(columns, found["probes"]) + of_model)


SUBCOMMANDS = (
    ListRows(
        noun=UPSTREAMS,
        columns=cells("name", "url", "dialect", "has_key", "leaves_network"),
        help="all upstreams",
    ),
    ShowRow(
        noun=UPSTREAMS,
        help="one upstream and the models that it listed when it was last tested",
        tables={
            "models": cells(
                *("id", "context_tokens", "max_output_tokens"),
                *PRICES,
            )
        },
    ),
    AddUpstream(noun=PLAIN_FLAGS, help="name an endpoint of others", positional=("name", "url")),
    ChangeUpstream(noun=WITHOUT_KEY, help="change an upstream, or its key"),
    TestUpstream(noun=UPSTREAMS, help="show what works of it, and record the models it lists"),
    RemoveRow(noun=UPSTREAMS, help="remove an upstream and its key"),
)
