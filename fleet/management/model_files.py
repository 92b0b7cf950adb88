"""``models search``, ``pull`` and ``cached``, and the choices of ``models add``."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from datetime import UTC, datetime
from urllib.parse import quote, urlencode

from django.core.management.base import CommandError

from fleet.catalogue import SETTINGS
from fleet.catalogue.entry import expected_vram_mb
from fleet.catalogue.rules import EXAMPLE_SOURCE
from fleet.catalogue.targets import UPSTREAM_PREFIX
from fleet.management import verbs
from fleet.management.backend import download_line, follow_download
from fleet.words import size_text
from helexa_site.management.base import ExitCode
from inference.loading.sources.files import JOINED_BY, wanted_files
from inference.protocol.load import NO_PROJECTOR
from inference.protocol.load_errors import BadSourceError
from inference.settings.storage import HUGGINGFACE


def add_file_arguments(parser: ArgumentParser) -> None:
    for name in ("file", "revision"):
        text = SETTINGS[name].help_text.removesuffix(".")
        parser.add_argument(f"--{name}", help=text[0].lower() + text[1:])


FOUND: verbs.Columns = {
    "repository": lambda one: one["name"],
    "downloads": lambda one: one["num_downloads"],
    "likes": lambda one: one["num_likes"],
    "gated": lambda one: "yes" if one["is_gated"] else "",
}


class Search(verbs.Verb):
    has_id = False

    def add_flags(self, parser: ArgumentParser) -> None:
        parser.add_argument("words", nargs="+", metavar="WORD")
        parser.add_argument(
            "--source", help="huggingface, or a named source; without it the default one"
        )

    def run(self, run: verbs.Run) -> None:
        words = " ".join(run.options["words"])
        query = {"search": words} | run.given("source")
        found = run.ask("GET", f"hub?{urlencode(query)}")
        run.show(found, verbs.rows_text(FOUND, found) if found else f"Nothing is called {words}.")


def names_a_repository(given: str) -> bool:
    """``helexa:org/name``, or a bare ``org/name`` of the default source."""
    scheme = given.partition(":")[0] if ":" in given else ""
    return scheme not in ("path", "pypi", UPSTREAM_PREFIX[:-1]) and (bool(scheme) or "/" in given)


def chosen_of_repository(run: verbs.Run, source: str) -> tuple[str, verbs.Row]:
    """Takes ``--file``, or asks at the terminal. Raises ``CommandError`` with the choices."""
    scheme, _, repository = source.rpartition(":")
    owner, _, name = repository.partition("/")
    if not owner or not name or "/" in name:
        raise CommandError(f"{source!r} is not like {scheme or HUGGINGFACE}:org/name")
    query = urlencode(run.given("revision") | ({"source": scheme} if scheme else {}))
    choices = run.ask("GET", f"hub/{quote(repository)}{'?' if query else ''}{query}")["choices"]
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


def _named(file: str, choices: list[verbs.Row]) -> verbs.Row:
    """``file`` may name an mmproj file beside the weights, as in a model's settings."""
    try:
        wanted = wanted_files(file)
    except BadSourceError as error:
        raise CommandError(str(error)) from None
    weights = wanted.weights or (choices[0]["label"] if len(choices) == 1 else "")
    for choice in choices:
        if weights.lower() == choice["label"].lower() or weights in _names(choice):
            return choice if wanted.projector is None else _with(choice, wanted.projector)
    labels = ", ".join(choice["label"] for choice in choices)
    raise CommandError(f"{file} is not there: choose one of {labels}")


def _with(choice: verbs.Row, projector: str) -> verbs.Row:
    settings = dict(choice["settings"])
    settings["file"] = JOINED_BY.join(filter(None, (settings["file"], projector)))
    if projector == NO_PROJECTOR:
        weights = [file for file in choice["files"] if file["name"] in _names(choice)]
        settings["vram_mb"] = expected_vram_mb(sum(file["num_bytes"] for file in weights))
    return choice | {"settings": settings}


def _names(choice: verbs.Row) -> list[str]:
    return [file["name"] for file in choice["files"] if file["name"] != choice["projector"]]


def _asked(run: verbs.Run, choices: list[verbs.Row]) -> verbs.Row:
    numbered = [choice | {"": number} for number, choice in enumerate(choices, 1)]
    table = verbs.rows_text(OFFERED, numbered)
    if not sys.stdin.isatty():
        raise CommandError(f"Choose one with --file:\n{table}")
    run.stderr.write(table)
    word = input("Which one? ").strip()
    if not word.isascii() or not word.isdigit() or not 1 <= int(word) <= len(choices):
        raise CommandError("None was chosen")
    return choices[int(word) - 1]


def _where(choice: verbs.Row) -> str:
    where = "; ".join(f"{fit['neuron']}: {fit['words']}" for fit in choice["fits"])
    words = choice["access_problem"] or choice["problem"] or where or "no neuron is there"
    return words + (f"; reads images by {choice['projector']}" if choice["projector"] else "")


OFFERED: verbs.Columns = {
    **verbs.cells(""),
    "file": lambda choice: choice["label"],
    "size": lambda choice: size_text(choice["num_bytes"]),
    "where it fits": _where,
}


class Pull(verbs.Verb):
    has_id = False

    def add_flags(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "source", metavar="SOURCE", help=f"as {EXAMPLE_SOURCE}, or a model's name"
        )
        add_file_arguments(parser)
        parser.add_argument("--neuron", metavar="NAME", help="else where its disk has room")
        parser.add_argument("--no-wait", action="store_true", help="do not wait for the end")

    def run(self, run: verbs.Run) -> None:
        source = run.options["source"]
        named = {"source" if ":" in source else "model": source}
        download = run.ask("POST", "downloads", named | run.given("file", "revision", "neuron"))
        if not run.options["no_wait"]:
            download = follow_download(run.backend, download, run.stderr)
        run.show(download, download_line(download))


class Cached(verbs.Verb):
    has_id = False

    def add_flags(self, parser: ArgumentParser) -> None:
        parser.add_argument("--neuron", metavar="NAME")
        parser.add_argument(
            "--remove",
            metavar="SOURCE[@REVISION]",
            help="delete this, which no model is loaded from; a model's name means its source",
        )
        verbs.add_dry_run_argument(parser)

    def run(self, run: verbs.Run) -> None:
        neuron = run.options["neuron"]
        path = "cached" if neuron is None else f"neurons/{verbs.quoted(neuron)}/cached"
        rows = run.rows(path)
        if run.options["dry_run"] and not run.options["remove"]:
            raise CommandError("--dry-run goes with --remove", returncode=ExitCode.USAGE)
        if run.options["remove"]:
            self._remove(run, _of_words(run.options["remove"], rows))
        else:
            run.show(rows, verbs.rows_text(COLUMNS, rows))

    def _remove(self, run: verbs.Run, rows: list[verbs.Row]) -> None:
        if not rows:
            raise CommandError(
                f"{run.options['remove']} is cached nowhere that is asked",
                returncode=ExitCode.NOT_FOUND,
            )
        if run.options["dry_run"]:
            for row in rows:  # the reasons to refuse a deletion hold here too
                run.ask("POST", "downloads?dry_run=true", _deletion(row))
            run.show({"would": rows}, "\n".join(map(_would_line, rows)))
            return
        deletions = [run.ask("POST", "downloads", _deletion(row)) for row in rows]
        ended = [follow_download(run.backend, one, run.stderr) for one in deletions]
        run.show(ended, "\n".join(map(download_line, ended)))


def _deletion(row: verbs.Row) -> verbs.Row:
    return {"kind": "delete"} | {name: row[name] for name in ("neuron", "source", "revision")}


def _of_words(words: str, rows: list[verbs.Row]) -> list[verbs.Row]:
    """Every revision where none is named. A model's name stands for its source."""
    return [
        row
        for row in rows
        if words in {*_names_of_source(row["source"], row["revision"]), *row["models"]}
    ]


def _names_of_source(source: str, revision: str) -> set[str]:
    """A wheel's folder has its version and a hash in its name: ``pypi:tiny-1.2-bcc81830d10c``."""
    names = {source, f"{source}@{revision}"}
    if source.startswith("pypi:") and source.count("-") >= 2:
        name, version, _hash = source.rsplit("-", 2)
        names |= {name, f"{name}=={version}"}
    return names


def _size(row: verbs.Row) -> str:
    return size_text(row["num_bytes"] + row["partial_bytes"])


def _would_line(row: verbs.Row) -> str:
    return f"would delete {row['source']}@{row['revision']} on {row['neuron']}, {_size(row)}"


def _state(row: verbs.Row) -> str:
    if not row["is_partial"]:
        return "whole"
    present_bytes = row["num_bytes"] + row["partial_bytes"]
    share = f" {present_bytes / row['wanted_bytes']:.0%}" if row["wanted_bytes"] else ""
    return f"partial{share}"


def _last_used(row: verbs.Row) -> str:
    used = row["last_used_unix_s"]
    return "" if used is None else datetime.fromtimestamp(used, UTC).strftime("%Y-%m-%d")


COLUMNS: verbs.Columns = {
    **verbs.cells("neuron", "source"),
    "revision": lambda row: row["revision"][:12],
    "size": _size,
    "state": _state,
    "models": lambda row: ", ".join(row["models"]) or "none of the catalogue",
    "loaded": lambda row: ", ".join(row["used_by"]),
    "last used": _last_used,
    "disk free": lambda row: size_text(row["disk_free_bytes"]),
}
