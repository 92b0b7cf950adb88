"""``manage.py series``: what happened, by time."""

from __future__ import annotations

from fleet.management.subcommands import SubcommandsCommand
from metering.management.series_commands import SUBCOMMANDS


class Command(SubcommandsCommand):
    help = "Requests, errors, times, tokens, queues and devices by time, for thirty days."
    subcommands = SUBCOMMANDS
