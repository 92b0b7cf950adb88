from __future__ import annotations

import sys
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from fleet.catalogue import DEFAULTS, SETTINGS
from fleet.catalogue.kinds import Targets
from fleet.catalogue.rules import EXAMPLE_SOURCE
from fleet.catalogue.targets import upstream_of
from fleet.management import model_files, verbs
from fleet.management.backend import follow, job_line
from fleet.nouns import MODELS, value_of_text
from fleet.words import size_text

REPLICAS = verbs.cells(*("neuron", "status", "is_outdated", "devices", "in_flight", "queue_depth"))
JOBS = verbs.cells(*("kind", "neuron", "status", "created_at", "requested_by", "failure_message"))
NOTHING = "Nothing to change."


class List(verbs.List):
    def run(self, run: verbs.Run) -> None:
        models = run.rows(self.list_path(run))
        replicas = run.rows("replicas")
        for model in models:
            model["replicas"] = [
                {name: one[name] for name in ("neuron", "status", "is_outdated")}
                for one in replicas
                if one["model"] == model["name"] or model["name"] in one["adapters"]
            ]
        run.show(models, verbs.rows_text(self.columns, models))


class Show(verbs.Show):
    def row(self, run: verbs.Run) -> verbs.Row:
        model = super().row(run)
        name = verbs.quoted(model["name"])
        replicas = run.rows(f"replicas?model={name}")
        jobs = run.ask("GET", f"load-jobs?model={name}&limit=5")["data"]
        return model | {"replicas": replicas, "jobs": jobs}

    def text(self, row: verbs.Row) -> str:
        is_set = {name: value for name, value in row.items() if value not in (None, "", [])}
        return super().text({"replicas": [], "jobs": []} | is_set)


class Add(verbs.Verb):
    has_id = False

    def add_flags(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "name",
            metavar="MODEL",
            help="what clients ask for; or only org/name of Hugging Face, or NAME:org/name of a "
            "named source, to choose of what it holds",
        )
        parser.add_argument("source", nargs="?", metavar="SOURCE", help=f"as {EXAMPLE_SOURCE}")
        parser.add_argument("--base", help="of an adapter (LoRA): the model that it adapts")
        model_files.add_file_arguments(parser)
        parser.add_argument(
            "--spread",
            help="device, host or fleet: whether a model that no device holds whole is divided, "
            "over devices of one host or also of several",
        )
        parser.add_argument("--pinned", action="store_const", const=True, help="keep it loaded")
        add_set_argument(parser, f"any of {', '.join(SETTINGS)}", default=[])

    def run(self, run: verbs.Run) -> None:
        body = self._named(run) | run.given("spread", "pinned") | settings_of(run)
        made = run.ask("POST", "catalogue", body)
        if upstream_of(made["source"]) is not None:
            run.show(made, f"{made['name']} is offered, and an upstream answers for it.")
            return
        models = run.ask("GET", "overview")["models"]
        no_host = next((one["no_host"] for one in models if one["name"] == made["name"]), "")
        run.show(
            made,
            f"{made['name']} is offered, and no host can run it: {no_host}."
            if no_host
            else f"{made['name']} is offered; the first request for it loads it.",
        )

    def _named(self, run: verbs.Run) -> verbs.Row:
        name = run.options["name"]
        if run.options["source"] is not None:
            return run.given("name", "source", "base", "file", "revision")
        if not model_files.names_a_repository(name):
            raise CommandError("name its source too, or only org/name to choose from")
        if run.options["base"]:
            raise CommandError("an adapter is given a name too: models add MODEL SOURCE --base …")
        chosen, settings = model_files.chosen_of_repository(run, name)
        return {"name": chosen, **settings}


def add_set_argument(parser: ArgumentParser, help: str, **more: Any) -> None:
    parser.add_argument("--set", action="append", metavar="SETTING=VALUE", help=help, **more)


def settings_of(run: verbs.Run) -> verbs.Row:
    return dict(setting_of(words) for words in run.options["set"])


@dataclass(frozen=True, kw_only=True)
class StartJobs(verbs.Verb):
    where: str = "of this neuron alone"

    def add_flags(self, parser: ArgumentParser) -> None:
        parser.add_argument("--neuron", metavar="NAME", help=self.where)
        parser.add_argument("--no-wait", action="store_true", help="do not wait for the end")

    def run(self, run: verbs.Run) -> None:
        jobs = run.ask("POST", f"{self.path(run)}/{self.name}", run.given("neuron"))["data"]
        if not run.options["no_wait"]:
            jobs = follow(run.backend, jobs, run.stderr.write)
        text = "\n".join(map(job_line, jobs)) or f"{self.row_id(run)} is loaded nowhere."
        run.show(jobs, text)


class Import(verbs.Verb):
    has_id = False

    def add_flags(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="- reads standard input")
        parser.add_argument("--apply", action="store_true", help="change it")
        parser.add_argument("--prune", action="store_true", help="remove what the file lacks")

    def run(self, run: verbs.Run) -> None:
        body = {"toml": _read(run.options["file"])} | run.given("apply", "prune")
        plan = run.ask("POST", "models.toml", body)
        text = "\n".join(plan["lines"] if plan["changes"] or plan["problems"] else [NOTHING])
        if plan["changes"] and not run.options["apply"] and not plan["problems"]:
            text += "\nNothing is changed yet: --apply does it."
        run.show(plan, text)
        if plan["problems"]:
            raise CommandError("What is marked with x is refused, and nothing is imported with it")


class Export(verbs.Verb):
    has_id = False

    def run(self, run: verbs.Run) -> None:
        exported = run.ask("GET", "models.toml")
        run.show(exported, exported["toml"].rstrip("\n"))


def _status(model: verbs.Row) -> str:
    if not model["enabled"]:
        return "disabled"
    if upstream_of(model["source"]) is not None:
        return "upstream"
    words = {
        f"{one['status']}, outdated" if one["is_outdated"] else one["status"]
        for one in model["replicas"]
    }
    return "; ".join(sorted(words)) or "unloaded"


LISTED: verbs.Columns = {
    "model": lambda model: model["name"],
    "status": _status,
    "on": lambda model: ", ".join(one["neuron"] for one in model["replicas"]),
    **verbs.cells("pinned", "source", "aliases"),
}


def _plan_text(found: verbs.Row) -> str:
    weights = size_text(found["weight_bytes"])
    parts = [f"{found['model']}: {found['num_layers']} layers, {weights} of weights on its devices"]
    if found["plan"] is None:
        parts.append(f"No plan: {found['refusal']}")
    else:
        parts += [_speed(found["plan"]), verbs.rows_text(PLANNED, found["plan"]["stages"])]
    for one in found["alternatives"]:
        parts.append(f"{one['words'].capitalize()}: {_speed(one)}")
        parts.append(verbs.rows_text(PLANNED, one["stages"]))
    return "\n\n".join([*parts, found["note"]])


def _speed(plan: verbs.Row) -> str:
    return (
        f"predicted {plan['tokens_per_s']:.1f} tokens/s for one request and "
        f"{plan['tokens_per_s_of_16']:.1f} for 16, of which {plan['num_running']} run at once; "
        f"{plan['kv_tokens']} tokens of keys and values"
    )


PLANNED: verbs.Columns = {
    "device": lambda stage: f"{stage['neuron']} {stage['device']}",
    "layers": lambda stage: f"{stage['first_layer']}-{stage['last_layer'] - 1}",
    "weights": lambda stage: size_text(stage["weight_bytes"]),
    "KV": lambda stage: size_text(stage["kv_bytes"]),
    "beside": lambda stage: size_text(stage["beside_bytes"]),
    "free": lambda stage: size_text(stage["free_bytes"]),
}


def setting_of(words: str) -> tuple[str, Any]:
    """An empty value unsets the setting, or restores its default. Raises ``CommandError``."""
    name, equals, text = words.partition("=")
    if not equals or name not in SETTINGS:
        raise CommandError(f"{words!r} is not SETTING=VALUE with one of {', '.join(SETTINGS)}")
    kind = SETTINGS[name].kind
    if not text:
        return name, None if kind.problem(None) is None else DEFAULTS.get(name)
    if isinstance(kind, Targets):
        return name, [one.strip() for one in text.split(",")]
    try:
        return name, value_of_text(kind, text)
    except ValueError as error:
        raise CommandError(f"{name}: {error}") from None


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{name} cannot be read: {error}") from error


class Command(verbs.Command):
    help = "The catalogue: models offered, and where they are loaded."
    subcommands = (
        List(MODELS, "all models of the catalogue, and where they are", columns=LISTED),
        Show(
            MODELS,
            "one model: its settings, its replicas and its last jobs",
            titles=("setting", "value"),
            tables={"replicas": REPLICAS, "jobs": JOBS},
        ),
        model_files.Search(
            MODELS,
            "repositories of Hugging Face or of a named source by words of their name",
            name="search",
        ),
        verbs.Do(
            MODELS,
            "on which devices a model would lie, how fast, and what else would fit; loads nothing",
            name="plan",
            method="GET",
            line=_plan_text,
        ),
        Add(MODELS, "offer a model", name="add"),
        verbs.Change(
            MODELS,
            "change settings of a model; replicas stay as they are until reloaded",
            arguments=lambda parser: add_set_argument(
                parser,
                "an empty value leaves it open, or sets its default where it cannot be open; any "
                f"of {', '.join(SETTINGS)}",
                required=True,
            ),
            body=settings_of,
        ),
        verbs.Remove(
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
        model_files.Pull(
            MODELS, "download a model's files to a neuron without loading it", name="pull"
        ),
        model_files.Cached(MODELS, "what neurons have downloaded, and deleting it", name="cached"),
        Import(
            MODELS,
            "import a models.toml into the catalogue; only shows the changes unless --apply",
            name="import",
        ),
        Export(MODELS, "print the catalogue as a models.toml", name="export"),
    )
