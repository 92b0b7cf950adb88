"""``models pull`` and ``models cached``."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import UTC, datetime

from django.core.management.base import CommandError

from fleet.catalogue.rules import EXAMPLE_SOURCE
from fleet.management import verbs
from fleet.management.following import download_line, follow_download
from fleet.management.hub import add_file_arguments
from fleet.management.sizes import size_text
from helexa_site.exit_codes import ExitCode


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
        row for row in rows if words in {*_names(row["source"], row["revision"]), *row["models"]}
    ]


def _names(source: str, revision: str) -> set[str]:
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
