"""``neurons list``."""

from __future__ import annotations

from argparse import ArgumentParser

from fleet.management.backend import rows_of
from fleet.management.sizes import size_text
from fleet.management.subcommands import Run
from metering.management.output import table_text

COLUMNS = ("neuron", "status", "devices", "models", "version", "problems")


class List:
    name = "list"
    help = "all neurons, with their devices and models"

    def add_arguments(self, parser: ArgumentParser) -> None:
        pass

    def run(self, run: Run) -> None:
        neurons = rows_of(run.backend, "neurons")
        rows = [
            [
                neuron["name"],
                neuron["status"],
                "\n".join(
                    f"{device['id']} {device['name']}, {size_text(device['free_memory_bytes'])} of "
                    f"{size_text(device['total_memory_bytes'])} free"
                    for device in neuron["devices"]
                ),
                ", ".join(neuron["replicas"]),
                neuron["version"],
                "; ".join(neuron["problems"]),
            ]
            for neuron in neurons
        ]
        run.show(neurons, table_text(COLUMNS, rows))
