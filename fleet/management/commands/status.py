from __future__ import annotations

import sys
import time
from argparse import ArgumentParser
from typing import Any

from fleet.management.backend import add_backend_arguments, backend_of
from fleet.management.verbs import Columns, cells, rows_text
from fleet.words import share_text, size_text, total_text
from helexa_site.management.base import QuickCommand
from metering.output import errors_on_one_line, json_text

NOTICE = "notice"
CLEAR = "\x1b[H\x1b[2J"


class Command(QuickCommand):
    help = "The fleet at one look. The exit code is 1 while something is wrong."

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_backend_arguments(parser)
        parser.add_argument("--watch", action="store_true", help="again every two seconds")

    def handle(self, *_args: Any, **options: Any) -> None:
        backend = backend_of(options)
        while True:
            with errors_on_one_line(), backend.understood():
                overview = backend.ask("GET", "overview")
                text = json_text(overview) if options["json"] else overview_text(overview)
            self.stdout.write(f"{CLEAR}{text}" if options["watch"] else text)
            if not options["watch"]:
                break
            time.sleep(2.0)
        if any(finding["level"] != NOTICE for finding in overview["attention"]):
            sys.exit(1)


def _optional(value: object, unit: str) -> str:
    return "" if value is None else f"{value} {unit}"


DEVICES: Columns = {
    "neuron": lambda device: device["of"]["name"],
    "status": lambda device: device["of"]["status"],
    "device": lambda device: f"{device['id']} {device['name']}",
    "free": lambda device: (
        f"{size_text(device['free_memory_bytes'])} of "
        f"{total_text(device['total_memory_bytes'], device['installed_memory_bytes'])}"
    ),
    "busy": lambda device: _optional(device["utilization_percent"], "%"),
    "temperature": lambda device: _optional(device["temperature_c"], "°C"),
}
REPLICAS: Columns = {
    "model": lambda replica: replica["model"],
    "neuron": lambda replica: replica["of"]["name"],
    "status": lambda replica: replica["status"] + ", outdated" * replica["is_outdated"],
    "running": lambda replica: replica["in_flight"],
    "waiting": lambda replica: replica["queue_depth"],
    "tok/s": lambda replica: f"{replica['decode_tokens_per_s']:.1f}",
}
STAGES: Columns = {
    "stage of": lambda stage: stage["model"],
    "neuron": lambda stage: stage["of"]["name"],
    "layers": lambda stage: f"{stage['first_layer']} to {stage['last_layer'] - 1}",
    "device": lambda stage: stage["device"],
    "memory": lambda stage: size_text(stage["memory_bytes"]),
    "engine on": lambda stage: stage["engine_neuron"],
    "status": lambda stage: stage["status"],
}
JOBS: Columns = {
    "job": lambda job: job["kind"],
    **cells("model", "neuron", "status", "stage"),
    "done": lambda job: share_text(job["progress_fraction"]),
}
OF_NEURONS = {"devices": DEVICES, "replicas": REPLICAS, "held_stages": STAGES}


def overview_text(overview: dict[str, Any]) -> str:
    parts = []
    if overview["attention"]:
        marked = (
            f"{'-' if finding['level'] == NOTICE else '!'} {finding['text']}"
            for finding in overview["attention"]
        )
        parts.append("\n".join(marked))
    for name, columns in OF_NEURONS.items():
        rows = [
            row | {"of": neuron} for neuron in overview["neurons"] for row in neuron.get(name, ())
        ]
        if rows:
            parts.append(rows_text(columns, rows))
    unloaded = [
        model
        for model in overview["models"]
        if model["status"] == "unloaded" and not model["no_host"]
    ]
    if ready := [model["name"] for model in unloaded if not model["not_now"]]:
        parts.append(f"Loaded on request: {', '.join(ready)}")
    if held_up := [f"{one['name']} ({one['not_now']})" for one in unloaded if one["not_now"]]:
        parts.append(f"Not loaded on request now: {', '.join(held_up)}")
    active = [job for job in overview["jobs"] if job["status"] in ("pending", "running")]
    if active:
        notes = [
            f"{job['model']} on {job['neuron']}: {job['note']}" for job in active if job["note"]
        ]
        parts.append("\n".join((rows_text(JOBS, active), *notes)))
    return "\n\n".join(parts) or "There is nothing yet."
