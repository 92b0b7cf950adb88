"""``models load``, ``unload``, ``reload``, ``sleep`` and ``wake``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any
from urllib.parse import quote

from fleet.management.following import follow, job_line
from fleet.management.subcommands import Run


class _Jobs:
    name = ""
    where = "of this neuron alone"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("model", metavar="MODEL")
        parser.add_argument("--neuron", metavar="NAME", help=self.where)
        parser.add_argument("--no-wait", action="store_true", help="do not wait for the end")

    def run(self, run: Run) -> None:
        neuron = run.options["neuron"]
        body: dict[str, Any] = {} if neuron is None else {"neuron": neuron}
        path = f"catalogue/{quote(run.options['model'], safe='')}/{self.name}"
        jobs = run.backend.ask("POST", path, body)["data"]
        if not run.options["no_wait"]:
            jobs = follow(run.backend, jobs, run.stderr.write)
        text = "\n".join(map(job_line, jobs)) or f"{run.options['model']} is loaded nowhere."
        run.show(jobs, text)


class Load(_Jobs):
    name = "load"
    help = "load a model where it fits, and wait for it"
    where = "there, rather than where it fits"


class Unload(_Jobs):
    name = "unload"
    help = "unload a model once its requests are done"


class Reload(_Jobs):
    name = "reload"
    help = "load a model again, with the catalogue's present settings"


class Sleep(_Jobs):
    name = "sleep"
    help = "give a model's device memory back and keep its weights in the host's memory"


class Wake(_Jobs):
    name = "wake"
    help = "wake a model that sleeps, and wait for it"
