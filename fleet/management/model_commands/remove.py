"""``models remove``."""

from __future__ import annotations

from argparse import ArgumentParser
from urllib.parse import quote

from fleet.management.rows import add_dry_run_argument, removed
from fleet.management.subcommands import Run


class Remove:
    name = "remove"
    help = "offer a model no more; its replicas are unloaded (a base after its adapters)"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="MODEL")
        add_dry_run_argument(parser)

    def run(self, run: Run) -> None:
        name = run.options["name"]
        if removed(run, f"catalogue/{quote(name, safe='')}"):
            run.show({"removed": name}, f"{name} is offered no more.")
