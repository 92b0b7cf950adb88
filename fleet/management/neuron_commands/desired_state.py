"""``neurons admit``, ``refuse``, ``drain`` and ``resume``."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from fleet.management.subcommands import Run


@dataclass(frozen=True)
class SetDesiredState:
    name: str
    help: str

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME")

    def run(self, run: Run) -> None:
        name = run.options["name"]
        within_s = self.within_s(run)
        body = {} if within_s is None else {"within_s": within_s}
        neuron = run.backend.ask("POST", f"neurons/{quote(name, safe='')}/{self.name}", body)
        end = {None: "", 0: ", and is ended now"}.get(
            within_s, f", and is ended after {within_s} s"
        )
        run.show(neuron, f"{name} {EFFECTS[self.name]}{what_runs(neuron)}{end}.")

    def within_s(self, run: Run) -> int | None:
        return None


class Drain(SetDesiredState):
    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        ends = parser.add_mutually_exclusive_group()
        ends.add_argument(
            "--within",
            metavar="SECONDS",
            type=int,
            help="end what still runs there after so long; without it, it finishes",
        )
        ends.add_argument(
            "--now", dest="within", action="store_const", const=0, help="end what runs there"
        )

    def within_s(self, run: Run) -> int | None:
        within_s: int | None = run.options["within"]
        return within_s


EFFECTS = {
    "drain": "takes no more loads and requests, but for models that are moving elsewhere",
    "resume": "takes loads and requests; what was loaded before its drain is loaded again",
    "admit": "is admitted: it takes loads and requests",
    "refuse": "is refused: it gets no more loads and requests",
}
"""What each of the commands brings about."""


def what_runs(neuron: Mapping[str, Any]) -> str:
    """The end of the sentence: what still runs there, or that the neuron is away."""
    if neuron["status"] == "away":
        return ", once it is back: it is away now"
    at_work = ", ".join(map(_at_work, neuron["at_work"]))
    return f"; at work there now: {at_work}" if at_work else "; nothing runs there now"


def _at_work(replica: Mapping[str, Any]) -> str:
    num_requests = replica["num_requests"]
    if not num_requests:
        return f"{replica['model']} ({replica['status']})"
    return f"{replica['model']} ({num_requests} request{'s' * (num_requests > 1)})"
