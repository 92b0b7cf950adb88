"""``manage.py status``: an overview of the fleet; exit code 1 while something is wrong."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser
from typing import Any

from fleet.management.backend import add_backend_arguments, backend_of
from fleet.management.sizes import size_text, total_text
from helexa_site.quick_command import QuickCommand
from metering.management.output import errors_on_one_line, json_text, table_text

NOTICE = "notice"
"""The level of findings that are no problem."""
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


def overview_text(overview: dict[str, Any]) -> str:
    neurons = overview["neurons"]
    parts = []
    if overview["attention"]:
        parts.append("\n".join(_finding_text(finding) for finding in overview["attention"]))
    devices = [
        [
            neuron["name"],
            neuron["status"],
            f"{device['id']} {device['name']}",
            f"{size_text(device['free_memory_bytes'])} of "
            f"{total_text(device['total_memory_bytes'], device['installed_memory_bytes'])}",
            "" if device["utilization_percent"] is None else f"{device['utilization_percent']} %",
            "" if device["temperature_c"] is None else f"{device['temperature_c']} °C",
        ]
        for neuron in neurons
        for device in neuron["devices"]
    ]
    if devices:
        columns = ("neuron", "status", "device", "free", "busy", "temperature")
        parts.append(table_text(columns, devices))
    replicas = [
        [
            replica["model"],
            neuron["name"],
            replica["status"] + (", outdated" if replica["is_outdated"] else ""),
            replica["in_flight"],
            replica["queue_depth"],
            f"{replica['decode_tokens_per_s']:.1f}",
        ]
        for neuron in neurons
        for replica in neuron["replicas"]
    ]
    if replicas:
        columns = ("model", "neuron", "status", "running", "waiting", "tok/s")
        parts.append(table_text(columns, replicas))
    stages = [
        [
            stage["model"],
            neuron["name"],
            f"{stage['first_layer']} to {stage['last_layer'] - 1}",
            stage["device"],
            "" if stage["memory_bytes"] is None else size_text(stage["memory_bytes"]),
            stage["engine_neuron"],
            stage["status"],
        ]
        for neuron in neurons
        for stage in neuron.get("held_stages", ())  # an older control has none
    ]
    if stages:
        held = ("stage of", "neuron", "layers", "device", "memory", "engine on", "status")
        parts.append(table_text(held, stages))
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
        parts.append(_jobs_text(active))
    return "\n\n".join(parts) or "There is nothing yet."


def _finding_text(finding: dict[str, Any]) -> str:
    return f"{'-' if finding['level'] == NOTICE else '!'} {finding['text']}"


def _jobs_text(jobs: list[dict[str, Any]]) -> str:
    """A row a job, with the jobs' notes below the table."""
    rows = [
        [job["kind"], job["model"], job["neuron"], job["status"], job["stage"], _percent(job)]
        for job in jobs
    ]
    notes = [f"{job['model']} on {job['neuron']}: {job['note']}" for job in jobs if job["note"]]
    table = table_text(("job", "model", "neuron", "status", "stage", "done"), rows)
    return "\n".join((table, *notes))


def _percent(job: dict[str, Any]) -> str:
    fraction = job["progress_fraction"]
    return "" if fraction is None else f"{fraction:.0%}"
