"""The subcommands of ``manage.py neurons``."""

from fleet.management.neuron_commands.invite import Invite
from fleet.management.neuron_commands.list import List
from fleet.management.neuron_commands.remove import Remove
from fleet.management.neuron_commands.revoke import Revoke
from fleet.management.neuron_commands.wishes import Wish

SUBCOMMANDS = (
    List(),
    Invite(),
    Revoke(),
    Wish("admit", "let a neuron belong to the fleet"),
    Wish("refuse", "place and route nothing there"),
    Wish("drain", "place nothing new there; what runs finishes"),
    Wish("resume", "end a drain"),
    Remove(),
)
