"""``neurons admit``, ``refuse``, ``drain`` and ``resume``."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import dataclass
from urllib.parse import quote

from fleet.management.subcommands import Run


@dataclass(frozen=True)
class Wish:
    name: str
    help: str

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME")

    def run(self, run: Run) -> None:
        name = run.options["name"]
        neuron = run.backend.ask("POST", f"neurons/{quote(name, safe='')}/{self.name}", {})
        run.show(neuron, f"{name}: {self.name} is wished; it is {neuron['status']} now.")
