"""``manage.py models``: the catalogue's models, and loading them."""

from __future__ import annotations

from fleet.management.model_commands import SUBCOMMANDS
from fleet.management.subcommands import SubcommandsCommand


class Command(SubcommandsCommand):
    help = "The catalogue: models offered, and where they are loaded."
    subcommands = SUBCOMMANDS
