"""``manage.py settings``."""

from __future__ import annotations

from fleet.management.noun_commands import SETTING_COMMANDS
from fleet.management.subcommands import SubcommandsCommand


class Command(SubcommandsCommand):
    help = "Settings: environment variables, as they are set. They are read at start."
    subcommands = SETTING_COMMANDS
