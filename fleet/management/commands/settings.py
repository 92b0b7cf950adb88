"""``manage.py settings``."""

from __future__ import annotations

from fleet.management.backend import LocalBackend
from fleet.management.rows import ListRows, Run, ShowRow, SubcommandsCommand, cells
from fleet.nouns import SETTINGS


class ListSettings(ListRows):
    """Reads this process' own environment where no server is named."""

    def run(self, run: Run) -> None:
        super().run(run)
        if isinstance(run.backend, LocalBackend):
            run.stderr.write("As set for this command. For what a server has read: --url URL.")


class Command(SubcommandsCommand):
    help = "Settings: environment variables, as they are set. They are read at start."
    subcommands = (
        ListSettings(
            SETTINGS,
            "what this command, or the server of --url, read from its environment",
            columns=cells("name", "value", "default"),
        ),
        ShowRow(SETTINGS, "one setting and what it means"),
    )
