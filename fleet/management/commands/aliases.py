"""``manage.py aliases``."""

from __future__ import annotations

from fleet.management.noun_commands import ALIAS_COMMANDS
from fleet.management.subcommands import SubcommandsCommand


class Command(SubcommandsCommand):
    help = "Aliases: other names of models."
    subcommands = ALIAS_COMMANDS
