"""``manage.py models``: the catalogue's models, and loading them."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from django.core.management.base import CommandError

from fleet.catalogue import DEFAULTS, SETTINGS
from fleet.catalogue.kinds import Targets
from fleet.catalogue.rules import EXAMPLE_SOURCE
from fleet.catalogue.targets import upstream_of
from fleet.management.backend import rows_of
from fleet.management.following import follow, job_line
from fleet.management.hub import (
    Search,
    add_file_arguments,
    chosen_of_repository,
    names_a_repository,
)
from fleet.management.model_files import Cached, Pull
from fleet.management.rows import (
    ChangeRow,
    ListRows,
    RemoveRow,
    Row,
    Run,
    Subcommand,
    SubcommandsCommand,
    add_id_argument,
    cell_of,
    list_path,
)
from fleet.management.sizes import size_text
from fleet.noun import value_of_text
from fleet.nouns import MODELS
from metering.management.output import table_text

LISTED = ("model", "status", "on", "pinned", "source", "aliases")
PLANNED = ("device", "layers", "weights", "KV", "beside", "free")
REPLICAS = ("neuron", "status", "is_outdated", "devices", "in_flight", "queue_depth")
JOBS = ("kind", "neuron", "status", "created_at", "requested_by", "failure_message")
NOTHING = "Nothing to change."


class List(ListRows):
    def run(self, run: Run) -> None:
        models = rows_of(run.backend, list_path(self.noun, run.options))
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
        run.show(models, table_text(LISTED, rows))


class Show(Subcommand):
    def run(self, run: Run) -> None:
        model = run.backend.ask("GET", self.path(run))
        name = quote(self.row_id(run), safe="")
        replicas = rows_of(run.backend, f"replicas?model={name}")
        jobs = run.backend.ask("GET", f"load-jobs?model={name}&limit=5")["data"]
        settings = [[key, value] for key, value in model.items() if value not in (None, "", [])]
        parts = [table_text(("setting", "value"), [[k, cell_of(v)] for k, v in settings])]
        for columns, rows in ((REPLICAS, replicas), (JOBS, jobs)):
            if rows:
                shown = [[cell_of(one[column]) for column in columns] for one in rows]
                parts.append(table_text(columns, shown))
        run.show(model | {"replicas": replicas, "jobs": jobs}, "\n\n".join(parts))


class Plan(Subcommand):
    def run(self, run: Run) -> None:
        found = run.backend.ask("GET", f"{self.path(run)}/plan")
        run.show(found, _plan_text(found))


class Add(Subcommand):
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "name",
            metavar="MODEL",
            help="what clients ask for; or only org/name of Hugging Face, or NAME:org/name of a "
            "named source, to choose of what it holds",
        )
        parser.add_argument("source", nargs="?", metavar="SOURCE", help=f"as {EXAMPLE_SOURCE}")
        parser.add_argument("--base", help="of an adapter (LoRA): the model that it adapts")
        add_file_arguments(parser)
        parser.add_argument(
            "--spread",
            help="device, host or fleet: whether a model that no device holds whole is divided, "
            "over devices of one host or also of several",
        )
        parser.add_argument("--pinned", action="store_true", help="keep it loaded")
        parser.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="SETTING=VALUE",
            help=f"any of {', '.join(SETTINGS)}",
        )

    def run(self, run: Run) -> None:
        body = self._named(run)
        if run.options["pinned"]:
            body["pinned"] = True
        body |= dict(setting_of(words) for words in run.options["set"])
        made = run.backend.ask("POST", "catalogue", body)
        if upstream_of(made["source"]) is not None:
            run.show(made, f"{made['name']} is offered, and an upstream answers for it.")
            return
        models = run.backend.ask("GET", "overview")["models"]
        no_host = next((one["no_host"] for one in models if one["name"] == made["name"]), "")
        run.show(
            made,
            f"{made['name']} is offered, and no host can run it: {no_host}."
            if no_host
            else f"{made['name']} is offered; the first request for it loads it.",
        )

    def _named(self, run: Run) -> dict[str, Any]:
        given = {
            name: run.options[name]
            for name in ("base", "file", "revision", "spread")
            if run.options[name]
        }
        name, source = run.options["name"], run.options["source"]
        if source is not None:
            return {"name": name, "source": source, **given}
        if not names_a_repository(name):
            raise CommandError("name its source too, or only org/name to choose from")
        if "base" in given:
            raise CommandError("an adapter is given a name too: models add MODEL SOURCE --base …")
        chosen, settings = chosen_of_repository(run, name)
        return {"name": chosen, **settings} | {
            key: given[key] for key in ("spread",) if key in given
        }


class Change(ChangeRow):
    def add_arguments(self, parser: ArgumentParser) -> None:
        add_id_argument(parser, self.noun)
        parser.add_argument(
            "--set",
            action="append",
            required=True,
            metavar="SETTING=VALUE",
            help="an empty value leaves it open, or sets its default where it cannot be open; any "
            f"of {', '.join(SETTINGS)}",
        )

    def body(self, run: Run) -> Row:
        return dict(setting_of(words) for words in run.options["set"])


@dataclass(frozen=True, kw_only=True)
class StartJobs(Subcommand):
    where: str = "of this neuron alone"

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--neuron", metavar="NAME", help=self.where)
        parser.add_argument("--no-wait", action="store_true", help="do not wait for the end")

    def run(self, run: Run) -> None:
        neuron = run.options["neuron"]
        body: dict[str, Any] = {} if neuron is None else {"neuron": neuron}
        jobs = run.backend.ask("POST", f"{self.path(run)}/{self.name}", body)["data"]
        if not run.options["no_wait"]:
            jobs = follow(run.backend, jobs, run.stderr.write)
        text = "\n".join(map(job_line, jobs)) or f"{self.row_id(run)} is loaded nowhere."
        run.show(jobs, text)


class Import(Subcommand):
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="- reads standard input")
        parser.add_argument("--apply", action="store_true", help="change it")
        parser.add_argument("--prune", action="store_true", help="remove what the file lacks")

    def run(self, run: Run) -> None:
        body = {
            "toml": _read(run.options["file"]),
            "apply": run.options["apply"],
            "prune": run.options["prune"],
        }
        plan = run.backend.ask("POST", "models.toml", body)
        text = "\n".join(plan["lines"] if plan["changes"] or plan["problems"] else [NOTHING])
        if plan["changes"] and not run.options["apply"] and not plan["problems"]:
            text += "\nNothing is changed yet: --apply does it."
        run.show(plan, text)
        if plan["problems"]:
            raise CommandError("What is marked with x is refused, and nothing is imported with it")


class Export(Subcommand):
    def add_arguments(self, parser: ArgumentParser) -> None:
        pass

    def run(self, run: Run) -> None:
        exported = run.backend.ask("GET", "models.toml")
        run.show(exported, exported["toml"].rstrip("\n"))


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


def _plan_text(found: dict[str, Any]) -> str:
    weights = size_text(found["weight_bytes"])
    parts = [f"{found['model']}: {found['num_layers']} layers, {weights} of weights on its devices"]
    if found["plan"] is None:
        parts.append(f"No plan: {found['refusal']}")
    else:
        parts += [_speed(found["plan"]), _stages(found["plan"])]
    for one in found["alternatives"]:
        parts += [f"{one['words'].capitalize()}: {_speed(one)}", _stages(one)]
    return "\n\n".join([*parts, found["note"]])


def _speed(plan: dict[str, Any]) -> str:
    return (
        f"predicted {plan['tokens_per_s']:.1f} tokens/s for one request and "
        f"{plan['tokens_per_s_of_16']:.1f} for 16, of which {plan['num_running']} run at once; "
        f"{plan['kv_tokens']} tokens of keys and values"
    )


def _stages(plan: dict[str, Any]) -> str:
    rows = [
        [
            f"{stage['neuron']} {stage['device']}",
            f"{stage['first_layer']}-{stage['last_layer'] - 1}",
            size_text(stage["weight_bytes"]),
            size_text(stage["kv_bytes"]),
            size_text(stage["beside_bytes"]),
            size_text(stage["free_bytes"]),
        ]
        for stage in plan["stages"]
    ]
    return table_text(PLANNED, rows)


def setting_of(words: str) -> tuple[str, Any]:
    """Reads ``SETTING=VALUE``: the setting's name, and its value by its kind. An empty value unsets
    it, or restores its default. Raises ``CommandError``."""
    name, equals, text = words.partition("=")
    if not equals or name not in SETTINGS:
        raise CommandError(f"{words!r} is not SETTING=VALUE with one of {', '.join(SETTINGS)}")
    if not text:
        return name, None if _may_be_open(name) else DEFAULTS.get(name)
    kind = SETTINGS[name].kind
    if isinstance(kind, Targets):
        return name, [one.strip() for one in text.split(",")]
    try:
        return name, value_of_text(kind, text)
    except ValueError as error:
        raise CommandError(f"{name}: {error}") from None


def _may_be_open(name: str) -> bool:
    return SETTINGS[name].kind.problem(None) is None


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{name} cannot be read: {error}") from error


class Command(SubcommandsCommand):
    help = "The catalogue: models offered, and where they are loaded."
    subcommands = (
        List(MODELS, "all models of the catalogue, and where they are"),
        Show(MODELS, "one model: its settings, its replicas and its last jobs", name="show"),
        Search(
            MODELS,
            "repositories of Hugging Face or of a named source by words of their name",
            name="search",
        ),
        Plan(
            MODELS,
            "on which devices a model would lie, how fast, and what else would fit; loads nothing",
            name="plan",
        ),
        Add(MODELS, "offer a model", name="add"),
        Change(MODELS, "change settings of a model; replicas stay as they are until reloaded"),
        RemoveRow(
            MODELS,
            "offer a model no more; its replicas are unloaded (a base after its adapters)",
            done="{id} is offered no more.",
        ),
        StartJobs(
            MODELS,
            "load a model where it fits, and wait for it",
            name="load",
            where="there, rather than where it fits",
        ),
        StartJobs(MODELS, "unload a model once its requests are done", name="unload"),
        StartJobs(
            MODELS, "load a model again, with the catalogue's present settings", name="reload"
        ),
        StartJobs(
            MODELS,
            "give a model's device memory back and keep its weights in the host's memory",
            name="sleep",
        ),
        StartJobs(MODELS, "wake a model that sleeps, and wait for it", name="wake"),
        Pull(MODELS, "download a model's files to a neuron without loading it", name="pull"),
        Cached(MODELS, "what neurons have downloaded, and deleting it", name="cached"),
        Import(
            MODELS,
            "import a models.toml into the catalogue; only shows the changes unless --apply",
            name="import",
        ),
        Export(MODELS, "print the catalogue as a models.toml", name="export"),
    )
