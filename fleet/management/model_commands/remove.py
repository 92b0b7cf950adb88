"""``models remove``."""

from __future__ import annotations

from argparse import ArgumentParser
from urllib.parse import quote

from fleet.management.subcommands import Run


class Remove:
    name = "remove"
    help = "offer a model no more; what is loaded of it is unloaded (a base after its adapters)"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="MODEL")

    def run(self, run: Run) -> None:
        run.backend.ask("DELETE", f"catalogue/{quote(run.options['name'], safe='')}")
        run.show({"removed": run.options["name"]}, f"{run.options['name']} is offered no more.")
