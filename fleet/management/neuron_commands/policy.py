"""``neurons policy``."""

from __future__ import annotations

from argparse import ArgumentParser

from fleet.management.rows import add_field_arguments, given_fields
from fleet.management.subcommands import Run
from fleet.nouns.of_fleet import POLICY
from metering.management.output import table_text


class Policy:
    name = "policy"
    help = "show or change how an unknown neuron is admitted: automatic or click"

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_field_arguments(parser, POLICY.changeable)

    def run(self, run: Run) -> None:
        body = given_fields(run.options, POLICY.changeable)
        method = "PATCH" if body else "GET"
        policy = run.backend.ask(method, POLICY.path, body or None)
        run.show(policy, table_text(("", ""), [[*item] for item in policy.items()]))
