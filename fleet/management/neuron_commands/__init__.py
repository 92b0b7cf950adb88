"""The subcommands of ``manage.py neurons``."""

from fleet.management.neuron_commands.desired_state import Drain, SetDesiredState
from fleet.management.neuron_commands.invite import (
    INVITE,
    LIST_INVITATIONS,
    REVOKE,
    SHOW_INVITATION,
)
from fleet.management.neuron_commands.list import LIST
from fleet.management.neuron_commands.policy import Policy
from fleet.management.neuron_commands.remove import Remove
from fleet.management.rows import ShowRow, cells
from fleet.nouns.of_fleet import NEURONS

SUBCOMMANDS = (
    LIST,
    ShowRow(
        noun=NEURONS,
        help="one neuron, its devices and its models",
        tables={
            "devices": cells(
                "id", "name", "free_memory_bytes", "total_memory_bytes", "installed_memory_bytes"
            )
        },
    ),
    INVITE,
    REVOKE,
    LIST_INVITATIONS,
    SHOW_INVITATION,
    Policy(),
    SetDesiredState("admit", "let a neuron belong to the fleet"),
    SetDesiredState("refuse", "place and route nothing there"),
    Drain("drain", "place nothing new there; what runs finishes, or ends in time"),
    SetDesiredState("resume", "end a drain"),
    Remove(),
)
