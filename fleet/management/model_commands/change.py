"""``models change``."""

from __future__ import annotations

from argparse import ArgumentParser
from urllib.parse import quote

from fleet.catalogue import SETTINGS
from fleet.management.model_commands.add import setting_of
from fleet.management.subcommands import Run


class Change:
    name = "change"
    help = "change settings of a model; replicas stay as they are until reloaded"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="MODEL")
        parser.add_argument(
            "--set",
            action="append",
            required=True,
            metavar="SETTING=VALUE",
            help="an empty value leaves it open, or sets its default where it cannot be open; any "
            f"of {', '.join(SETTINGS)}",
        )

    def run(self, run: Run) -> None:
        name = run.options["name"]
        body = dict(setting_of(words) for words in run.options["set"])
        changed = run.backend.ask("PATCH", f"catalogue/{quote(name, safe='')}", body)
        run.show(changed, f"Changed the model {name}.")
