"""``manage.py requests``: records of requests."""

from __future__ import annotations

from argparse import ArgumentParser

from fleet.management.rows import (
    ListRows,
    Row,
    Run,
    ShowRow,
    SubcommandsCommand,
    cells,
    list_path,
    rows_text,
)
from metering.nouns import REQUESTS

DEFAULT_LIMIT = 50
MAX_LIMIT = 1000


def _key(row: Row) -> object:
    return row["key_name"] or row["key"]


def _tokens(row: Row) -> object:
    return row["prompt_tokens"] + row["completion_tokens"]


LISTED = {
    **cells("id", "at", "account"),
    "key": _key,
    "model": lambda row: row["model"] or row["model_asked"],
    **cells("neuron", "endpoint", "status", "outcome"),
    "code": lambda row: row["code"] or "",
    "ms": lambda row: row["duration_ms"],
    "tokens": _tokens,
}


class ListRequests(ListRows):
    """One page: there may be a million."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--limit",
            type=int,
            default=DEFAULT_LIMIT,
            metavar="N",
            help=f"at most so many, 1 to {MAX_LIMIT} (%(default)s)",
        )

    def run(self, run: Run) -> None:
        path = list_path(self.noun, run.options)
        joint = "&" if "?" in path else "?"
        page = run.backend.ask("GET", f"{path}{joint}limit={run.options['limit']}")
        run.show(page["data"], rows_text(self.columns, page["data"]))
        if page["has_more"] and not run.options["json"]:
            run.stderr.write("There are older ones: --limit, or --until with a time.")


class ShowRequest(ShowRow):
    """Prints one request; with ``--body`` its captured bodies too, each under its name."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--body",
            action="store_true",
            help="its captured bodies too, which is audited",
        )

    def run(self, run: Run) -> None:
        if not run.options["body"]:
            super().run(run)
            return
        captured = run.backend.ask("GET", f"{self.path(run)}/capture")
        row = self.row(run)
        texts = {name: text for name, text in captured.items() if name != "id" and text}
        bodies = [f"{name}:\n{text}" for name, text in texts.items()]
        run.show({**row, "capture": captured}, "\n\n".join([self.text(row), *bodies]))


class Command(SubcommandsCommand):
    help = "What became of each request that reached a gateway, refused ones too."
    subcommands = (
        ListRequests(REQUESTS, "requests and how they ended, newest first", columns=LISTED),
        ShowRequest(REQUESTS, "all that is recorded of one request"),
    )
