from __future__ import annotations

from fleet.management import verbs
from fleet.management.backend import LocalBackend
from fleet.nouns import SETTINGS


class ListSettings(verbs.List):
    def run(self, run: verbs.Run) -> None:
        super().run(run)
        if isinstance(run.backend, LocalBackend):
            run.stderr.write("As set for this command. For what a server has read: --url URL.")


class Command(verbs.Command):
    help = "Settings: environment variables, as they are set. They are read at start."
    subcommands = (
        ListSettings(
            SETTINGS,
            "what this command, or the server of --url, read from its environment",
            columns=verbs.cells("name", "value", "default"),
        ),
        verbs.Show(SETTINGS, "one setting and what it means"),
    )
