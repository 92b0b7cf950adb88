"""``neurons drill``: a fault, on purpose."""

from __future__ import annotations

from argparse import ArgumentParser
from urllib.parse import quote

from fleet.management.subcommands import Run
from inference.protocol.drills import MAX_DRILL_S, Fault


class Drill:
    name = "drill"
    help = "inject a fault in a neuron that allows it, to see the fleet recover"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("neuron", metavar="NAME")
        parser.add_argument("fault", metavar="FAULT", choices=list(Fault), help=", ".join(Fault))
        parser.add_argument(
            "--model", help="of kill-engine, stall-engine and fail-load: whose engine"
        )
        parser.add_argument(
            "--seconds",
            type=int,
            help=f"of stall-engine and drop-link: how long, {MAX_DRILL_S} at most; 15 by default",
        )

    def run(self, run: Run) -> None:
        name, fault = run.options["neuron"], run.options["fault"]
        asked = {"fault": str(fault)}
        asked |= {
            key: run.options[key] for key in ("model", "seconds") if run.options[key] is not None
        }
        sent = run.backend.ask("POST", f"neurons/{quote(name, safe='')}/drill", asked)
        what = f"{fault} of {sent['model']}" if sent["model"] else fault
        lasts = f" for {sent['seconds']} s" if sent["seconds"] else ""
        run.show(sent, f"{name}: {what}{lasts} is ordered; see its log and `neurons show`.")
