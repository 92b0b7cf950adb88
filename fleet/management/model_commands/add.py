"""``models add``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from fleet.catalogue import DEFAULTS, SETTINGS
from fleet.catalogue.kinds import Count, Flag, Money, NeuronNames, Number, Targets
from fleet.catalogue.rules import EXAMPLE_SOURCE
from fleet.catalogue.targets import upstream_of
from fleet.management.model_commands.hub import chosen_of_repository, names_a_repository
from fleet.management.model_commands.source_arguments import add_file_arguments
from fleet.management.subcommands import Run


class Add:
    name = "add"
    help = "offer a model"

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
        """Raises ``CommandError``."""
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


def setting_of(words: str) -> tuple[str, Any]:
    """Reads ``SETTING=VALUE``: the setting's name, and its value by its kind. An empty value leaves
    the setting open, or is its default where it cannot be open. Raises ``CommandError``."""
    name, equals, text = words.partition("=")
    if not equals or name not in SETTINGS:
        raise CommandError(f"{words!r} is not SETTING=VALUE with one of {', '.join(SETTINGS)}")
    if not text:
        return name, None if _may_be_open(name) else DEFAULTS.get(name)
    match SETTINGS[name].kind:
        case Flag():
            if text not in ("true", "false"):
                raise CommandError(f"{name} is true or false")
            return name, text == "true"
        case Count() | Money():
            try:
                return name, int(text)
            except ValueError:
                raise CommandError(f"{name} is a whole number, and {text!r} is none") from None
        case Number():
            try:
                return name, float(text)
            except ValueError:
                raise CommandError(f"{name} is a number, and {text!r} is none") from None
        case NeuronNames():
            return name, text.replace(",", " ").split()
        case Targets():
            return name, [one.strip() for one in text.split(",")]
        case _:
            return name, text


def _may_be_open(name: str) -> bool:
    return SETTINGS[name].kind.problem(None) is None
