from __future__ import annotations

from argparse import ArgumentParser
from typing import Any
from urllib.parse import quote

from fleet.management.backend import add_backend_arguments, backend_of
from fleet.neuron_client import DEFAULT_LINES
from helexa_site.management.base import QuickCommand
from metering.output import errors_on_one_line, json_text


class Command(QuickCommand):
    help = "The last lines that a model's engine wrote on a neuron, also after it has ended."

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_backend_arguments(parser)
        parser.add_argument("neuron", metavar="NEURON")
        parser.add_argument("model", metavar="MODEL")
        parser.add_argument("--lines", type=int, default=DEFAULT_LINES, metavar="N")

    def handle(self, *_args: Any, **options: Any) -> None:
        neuron, model = (quote(options[name], safe="") for name in ("neuron", "model"))
        path = f"neurons/{neuron}/models/{model}/logs?lines={options['lines']}"
        backend = backend_of(options)
        with errors_on_one_line(), backend.understood():
            log = backend.ask("GET", path)
            self.stdout.write(json_text(log) if options["json"] else "\n".join(log["lines"]))
