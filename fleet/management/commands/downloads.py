"""``manage.py downloads``."""

from __future__ import annotations

from fleet.management.noun_commands import DOWNLOAD_COMMANDS
from fleet.management.subcommands import SubcommandsCommand


class Command(SubcommandsCommand):
    help = "Downloads: files on their way to neurons. models pull starts one."
    subcommands = DOWNLOAD_COMMANDS
