"""``manage.py requests``: find a request and how it ended."""

from __future__ import annotations

from fleet.management.subcommands import SubcommandsCommand
from metering.management.request_commands import SUBCOMMANDS


class Command(SubcommandsCommand):
    help = "What became of each request that reached a gateway, refused ones too."
    subcommands = SUBCOMMANDS
