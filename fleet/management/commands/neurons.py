"""``manage.py neurons``: invite hosts, and revoke their invitations."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from fleet import services
from fleet.errors import FleetError
from metering.actor import COMMAND


class Command(BaseCommand):
    help = "Neurons: the hosts that models are loaded on."

    def add_arguments(self, parser: ArgumentParser) -> None:
        commands = parser.add_subparsers(dest="command", required=True)
        invite = commands.add_parser("invite", help="print a line that makes another host a neuron")
        invite.add_argument("name", metavar="NAME", help="the neuron's name")
        invite.add_argument(
            "--address",
            metavar="HOST:PORT",
            help="where that host reaches Redis, where it is not what serve --share has",
        )
        invite.add_argument("--json", action="store_true", help="print JSON")
        revoke = commands.add_parser("revoke", help="shut an invited host out")
        revoke.add_argument("name", metavar="NAME")

    def handle(self, *_args: Any, **options: Any) -> None:
        try:
            {"invite": self._invite, "revoke": self._revoke}[options["command"]](options)
        except FleetError as error:
            raise CommandError(str(error)) from error

    def _invite(self, options: dict[str, Any]) -> None:
        line = services.neuron_invite(
            actor=COMMAND, neuron_name=options["name"], address=options["address"]
        )
        if options["json"]:
            self.stdout.write(json.dumps({"join": line}))
            return
        self.stderr.write(f"On {options['name']}, in a checkout of helexa (shown this once):")
        self.stdout.write(f"python3 manage.py neuron --join {line}")

    def _revoke(self, options: dict[str, Any]) -> None:
        services.neuron_revoke(actor=COMMAND, neuron_name=options["name"])
        self.stdout.write(f"{options['name']} can reach Redis no more.")
