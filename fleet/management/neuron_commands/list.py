"""``neurons list``."""

from __future__ import annotations

from fleet.management.rows import Columns, ListRows, Row
from fleet.management.sizes import size_text, total_text
from fleet.nouns.of_fleet import NEURONS


def _devices(neuron: Row) -> str:
    return "\n".join(
        f"{device['id']} {device['name']}, {size_text(device['free_memory_bytes'])} of "
        f"{total_text(device['total_memory_bytes'], device['installed_memory_bytes'])} free"
        for device in neuron["devices"]
    )


COLUMNS: Columns = {
    "neuron": lambda neuron: neuron["name"],
    "status": lambda neuron: neuron["status"],
    "devices": _devices,
    "models": lambda neuron: ", ".join(neuron["replicas"]),
    "version": lambda neuron: neuron["version"],
    "problems": lambda neuron: "; ".join(neuron["problems"]),
}
LIST = ListRows(noun=NEURONS, columns=COLUMNS, help="all neurons, with their devices and models")
