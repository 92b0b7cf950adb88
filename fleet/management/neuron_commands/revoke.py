"""``neurons revoke``: on a machine that has the Redis, never over HTTP."""

from __future__ import annotations

from argparse import ArgumentParser

from fleet import services
from fleet.management.neuron_commands.here import ensure_here
from fleet.management.subcommands import Run
from metering.actor import COMMAND


class Revoke:
    name = "revoke"
    help = "shut an invited host out"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME")

    def run(self, run: Run) -> None:
        ensure_here(run)
        name = run.options["name"]
        services.neuron_revoke(actor=COMMAND, neuron_name=name)
        run.show({"revoked": name}, f"{name} can reach Redis no more.")
