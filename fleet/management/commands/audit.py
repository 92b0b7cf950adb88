"""``manage.py audit``."""

from __future__ import annotations

from fleet.management.noun_commands import AUDIT_COMMANDS
from fleet.management.subcommands import SubcommandsCommand


class Command(SubcommandsCommand):
    help = "The audit: who changed what."
    subcommands = AUDIT_COMMANDS
