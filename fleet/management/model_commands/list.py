"""``models list``."""

from __future__ import annotations

from argparse import ArgumentParser

from fleet.catalogue.targets import upstream_of
from fleet.management.backend import rows_of
from fleet.management.rows import add_filter_arguments, list_path
from fleet.management.subcommands import Run
from fleet.nouns.of_fleet import MODELS
from metering.management.output import table_text

COLUMNS = ("model", "status", "on", "pinned", "source", "aliases")


class List:
    name = "list"
    help = "all models of the catalogue, and where they are"

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_filter_arguments(parser, MODELS)

    def run(self, run: Run) -> None:
        models = rows_of(run.backend, list_path(MODELS, run.options))
        replicas = rows_of(run.backend, "replicas")
        for model in models:
            model["replicas"] = [
                {
                    "neuron": one["neuron"],
                    "status": one["status"],
                    "is_outdated": one["is_outdated"],
                }
                for one in replicas
                if one["model"] == model["name"] or model["name"] in one["adapters"]
            ]
        rows = [
            [
                model["name"],
                _status(model),
                ", ".join(one["neuron"] for one in model["replicas"]),
                model["pinned"],
                model["source"],
                ", ".join(model["aliases"]),
            ]
            for model in models
        ]
        run.show(models, table_text(COLUMNS, rows))


def _status(model: dict) -> str:  # type: ignore[type-arg]
    if not model["enabled"]:
        return "disabled"
    if upstream_of(model["source"]) is not None:
        return "upstream"
    words = {
        f"{one['status']}, outdated" if one["is_outdated"] else one["status"]
        for one in model["replicas"]
    }
    return "; ".join(sorted(words)) or "unloaded"
