"""``manage.py neurons``: the hosts that models are loaded on."""

from __future__ import annotations

from fleet.management.neuron_commands import SUBCOMMANDS
from fleet.management.subcommands import SubcommandsCommand


class Command(SubcommandsCommand):
    help = "Neurons: the hosts that models are loaded on."
    subcommands = SUBCOMMANDS
