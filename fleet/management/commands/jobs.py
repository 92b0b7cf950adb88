"""``manage.py jobs``."""

from __future__ import annotations

from fleet.management.noun_commands import JOB_COMMANDS
from fleet.management.subcommands import SubcommandsCommand


class Command(SubcommandsCommand):
    help = "Jobs: loads, unloads, reloads and sleeps. models load starts one."
    subcommands = JOB_COMMANDS
