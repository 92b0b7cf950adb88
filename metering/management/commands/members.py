"""``manage.py members``: who belongs to which account."""

from __future__ import annotations

from fleet.management.subcommands import SubcommandsCommand
from metering.management.account_commands import MEMBER_COMMANDS


class Command(SubcommandsCommand):
    help = "Members: people in accounts, as owner, member or viewer."
    subcommands = MEMBER_COMMANDS
