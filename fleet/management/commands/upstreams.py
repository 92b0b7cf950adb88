"""``manage.py upstreams``."""

from __future__ import annotations

from fleet.management.subcommands import SubcommandsCommand
from fleet.management.upstream_commands import SUBCOMMANDS


class Command(SubcommandsCommand):
    help = "Upstreams: endpoints of others that answer requests."
    subcommands = SUBCOMMANDS
