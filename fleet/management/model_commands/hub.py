"""``models search``, and what ``models add`` shows of a repository to choose from."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any
from urllib.parse import quote

from django.core.management.base import CommandError

from fleet.management.sizes import size_text
from fleet.management.subcommands import Run
from metering.management.output import table_text

SCHEME = "huggingface:"
FOUND = ("repository", "downloads", "likes", "gated")
OFFERED = ("", "file", "size", "where it fits")


class Search:
    name = "search"
    help = "repositories of Hugging Face by words of their name"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("words", nargs="+", metavar="WORD")

    def run(self, run: Run) -> None:
        words = " ".join(run.options["words"])
        found = run.backend.ask("GET", f"hub?search={quote(words, safe='')}")
        rows = [
            [one["name"], one["num_downloads"], one["num_likes"], "yes" if one["is_gated"] else ""]
            for one in found
        ]
        run.show(found, table_text(FOUND, rows) if rows else f"Nothing is called {words}.")


def whole_source(given: str) -> str:
    """``org/name`` is a repository of Hugging Face, as in the original."""
    owner, slash, name = given.partition("/")
    is_repository = owner and slash and name and "/" not in name and ":" not in given
    return f"{SCHEME}{given}" if is_repository else given


def chosen_of_repository(run: Run, source: str) -> tuple[str, dict[str, Any]]:
    """The name and the settings of the model that ``--file`` names, or that the user chooses at the
    terminal. Raises ``CommandError`` with the choices."""
    repository, revision = source.removeprefix(SCHEME), run.options["revision"]
    owner, _, name = repository.partition("/")
    if not owner or not name or "/" in name:
        raise CommandError(f"{source!r} is not like {SCHEME}org/name")
    query = f"?revision={quote(revision, safe='')}" if revision else ""
    found = run.backend.ask("GET", f"hub/{quote(repository)}{query}")
    choices = found["choices"]
    if not choices:
        raise CommandError(f"{repository} holds neither safetensors nor GGUF files")
    if run.options["file"]:
        choice = _named(run.options["file"], choices)
    elif len(choices) == 1:
        choice = choices[0]
    else:
        choice = _asked(run, choices)
    if choice["access_problem"]:
        raise CommandError(choice["access_problem"])
    if choice["problem"]:
        raise CommandError(f"This build does not run {choice['label']}: {choice['problem']}")
    settings = {name: value for name, value in choice["settings"].items() if value is not None}
    return choice["model_name"], settings


def _named(file: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    for choice in choices:
        if file.lower() == choice["label"].lower() or file in _names(choice):
            return choice
    labels = ", ".join(choice["label"] for choice in choices)
    raise CommandError(f"{file} is not there: choose one of {labels}")


def _names(choice: dict[str, Any]) -> list[str]:
    return [file["name"] for file in choice["files"]]


def _asked(run: Run, choices: list[dict[str, Any]]) -> dict[str, Any]:
    rows = [[number, *_row(choice)] for number, choice in enumerate(choices, 1)]
    table = table_text(OFFERED, rows)
    if not sys.stdin.isatty():
        raise CommandError(f"Choose one with --file:\n{table}")
    run.stderr.write(table)
    word = input("Which one? ").strip()
    if not word.isascii() or not word.isdigit() or not 1 <= int(word) <= len(choices):
        raise CommandError("None was chosen")
    return choices[int(word) - 1]


def _row(choice: dict[str, Any]) -> list[object]:
    where = "; ".join(f"{fit['neuron']}: {fit['words']}" for fit in choice["fits"])
    words = choice["access_problem"] or choice["problem"] or where or "no neuron is there"
    return [choice["label"], size_text(choice["num_bytes"]), words]
