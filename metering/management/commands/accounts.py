"""``manage.py accounts``: who pays."""

from __future__ import annotations

from fleet.management.subcommands import SubcommandsCommand
from helexa_site.program import program
from metering.management.account_commands import ACCOUNT_COMMANDS


class Command(SubcommandsCommand):
    help = f"Accounts: who pays. Their keys: {program()} keys; their caps: {program()} budgets."
    subcommands = ACCOUNT_COMMANDS
