"""``neurons invite``: on a machine that has the Redis, never over HTTP."""

from __future__ import annotations

from argparse import ArgumentParser

from fleet import services
from fleet.management.neuron_commands.here import ensure_here
from fleet.management.subcommands import Run
from helexa_site.program import installation, neuron_program
from metering.actor import COMMAND


class Invite:
    name = "invite"
    help = "print a line that makes another host a neuron"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help="the neuron's name")
        parser.add_argument(
            "--address",
            metavar="HOST:PORT",
            help="where that host reaches Redis, where it is not what serve --share has",
        )

    def run(self, run: Run) -> None:
        ensure_here(run)
        name = run.options["name"]
        line = services.neuron_invite(
            actor=COMMAND, neuron_name=name, address=run.options["address"]
        )
        if not run.options["json"]:
            run.stderr.write(f"On {name}, {installation().value} (shown this once):")
        run.show({"join": line}, f"{neuron_program()} neuron --join {line}")
