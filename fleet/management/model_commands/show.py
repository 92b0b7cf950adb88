"""``models show``."""

from __future__ import annotations

from argparse import ArgumentParser
from urllib.parse import quote

from fleet.management.backend import rows_of
from fleet.management.subcommands import Run
from metering.management.output import table_text


class Show:
    name = "show"
    help = "one model: its settings, its replicas and its last jobs"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="MODEL")

    def run(self, run: Run) -> None:
        name = quote(run.options["name"], safe="")
        model = run.backend.ask("GET", f"catalogue/{name}")
        replicas = rows_of(run.backend, f"replicas?model={name}")
        jobs = run.backend.ask("GET", f"load-jobs?model={name}&limit=5")["data"]
        settings = [[key, value] for key, value in model.items() if value not in (None, "", [])]
        parts = [table_text(("setting", "value"), [[k, _cell(v)] for k, v in settings])]
        if replicas:
            columns = ("neuron", "status", "is_outdated", "devices", "in_flight", "queue_depth")
            shown = [[_cell(one[column]) for column in columns] for one in replicas]
            parts.append(table_text(columns, shown))
        if jobs:
            columns = ("kind", "neuron", "status", "created_at", "requested_by", "failure_message")
            parts.append(table_text(columns, [[one[column] for column in columns] for one in jobs]))
        run.show(model | {"replicas": replicas, "jobs": jobs}, "\n\n".join(parts))


def _cell(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value
