"""``manage.py keys``: make, list, change and revoke API keys."""

from __future__ import annotations

from fleet.management.subcommands import SubcommandsCommand
from metering.management.key_commands import SUBCOMMANDS


class Command(SubcommandsCommand):
    help = "API keys: shown once when they are made, known by their prefix from then on."
    subcommands = SUBCOMMANDS
