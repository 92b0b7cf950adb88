"""``models import`` and ``models export``."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path

from django.core.management.base import CommandError

from fleet.management.subcommands import Run

NOTHING = "Nothing to change."


class Import:
    name = "import"
    help = "import a models.toml into the catalogue; only shows the changes unless --apply"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="- reads standard input")
        parser.add_argument("--apply", action="store_true", help="change it")
        parser.add_argument("--prune", action="store_true", help="remove what the file lacks")

    def run(self, run: Run) -> None:
        body = {
            "toml": _read(run.options["file"]),
            "apply": run.options["apply"],
            "prune": run.options["prune"],
        }
        plan = run.backend.ask("POST", "models.toml", body)
        text = "\n".join(plan["lines"] if plan["changes"] or plan["problems"] else [NOTHING])
        if plan["changes"] and not run.options["apply"] and not plan["problems"]:
            text += "\nNothing is changed yet: --apply does it."
        run.show(plan, text)
        if plan["problems"]:
            raise CommandError("What is marked with x is refused, and nothing is imported with it")


class Export:
    name = "export"
    help = "print the catalogue as a models.toml"

    def add_arguments(self, parser: ArgumentParser) -> None:
        pass

    def run(self, run: Run) -> None:
        exported = run.backend.ask("GET", "models.toml")
        run.show(exported, exported["toml"].rstrip("\n"))


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{name} cannot be read: {error}") from error
