"""``manage.py budgets``: hard caps on accounts and keys."""

from __future__ import annotations

from fleet.management.subcommands import SubcommandsCommand
from metering.management.budget_commands import SUBCOMMANDS


class Command(SubcommandsCommand):
    help = "Budgets: hard caps on accounts and keys, in tokens or US dollars."
    subcommands = SUBCOMMANDS
