"""``neurons remove``."""

from __future__ import annotations

from argparse import ArgumentParser
from urllib.parse import quote

from fleet.management.subcommands import Run


class Remove:
    name = "remove"
    help = "forget a neuron that is away, with its load jobs"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME")

    def run(self, run: Run) -> None:
        name = run.options["name"]
        run.backend.ask("DELETE", f"neurons/{quote(name, safe='')}")
        run.show({"removed": name}, f"{name} is forgotten.")
