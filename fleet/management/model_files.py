"""``models pull`` and ``models cached``."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from django.core.management.base import CommandError

from fleet.catalogue.rules import EXAMPLE_SOURCE
from fleet.management.backend import rows_of
from fleet.management.following import download_line, follow_download
from fleet.management.hub import add_file_arguments
from fleet.management.rows import Run, Subcommand, add_dry_run_argument
from fleet.management.sizes import size_text
from helexa_site.exit_codes import ExitCode
from metering.management.output import table_text

COLUMNS = (
    "neuron",
    "source",
    "revision",
    "size",
    "state",
    "models",
    "loaded",
    "last used",
    "disk free",
)
NO_MODEL = "none of the catalogue"


class Pull(Subcommand):
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "source", metavar="SOURCE", help=f"as {EXAMPLE_SOURCE}, or a model's name"
        )
        add_file_arguments(parser)
        parser.add_argument("--neuron", metavar="NAME", help="else where its disk has room")
        parser.add_argument("--no-wait", action="store_true", help="do not wait for the end")

    def run(self, run: Run) -> None:
        source = run.options["source"]
        body: dict[str, Any] = {"source" if ":" in source else "model": source}
        given = {name: run.options[name] for name in ("file", "revision", "neuron")}
        body |= {name: value for name, value in given.items() if value}
        download = run.backend.ask("POST", "downloads", body)
        if not run.options["no_wait"]:
            download = follow_download(run.backend, download, run.stderr)
        run.show(download, download_line(download))


class Cached(Subcommand):
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--neuron", metavar="NAME")
        parser.add_argument(
            "--remove",
            metavar="SOURCE[@REVISION]",
            help="delete this, which no model is loaded from; a model's name means its source",
        )
        add_dry_run_argument(parser)

    def run(self, run: Run) -> None:
        neuron = run.options["neuron"]
        path = "cached" if neuron is None else f"neurons/{quote(neuron, safe='')}/cached"
        rows = rows_of(run.backend, path)
        if run.options["dry_run"] and not run.options["remove"]:
            raise CommandError("--dry-run goes with --remove", returncode=ExitCode.USAGE)
        if run.options["remove"]:
            self._remove(run, _of_words(run.options["remove"], rows))
        else:
            run.show(rows, table_text(COLUMNS, [_row(row) for row in rows]))

    def _remove(self, run: Run, rows: list[dict[str, Any]]) -> None:
        if not rows:
            raise CommandError(
                f"{run.options['remove']} is cached nowhere that is asked",
                returncode=ExitCode.NOT_FOUND,
            )
        if run.options["dry_run"]:
            for row in rows:  # the reasons to refuse a deletion hold here too
                run.backend.ask("POST", "downloads?dry_run=true", _deletion(row))
            run.show({"would": rows}, "\n".join(map(_would_line, rows)))
            return
        deletions = [run.backend.ask("POST", "downloads", _deletion(row)) for row in rows]
        ended = [follow_download(run.backend, one, run.stderr) for one in deletions]
        run.show(ended, "\n".join(map(download_line, ended)))


def _deletion(row: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "delete"} | {name: row[name] for name in ("neuron", "source", "revision")}


def _of_words(words: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
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


def _would_line(row: dict[str, Any]) -> str:
    size = size_text(row["num_bytes"] + row["partial_bytes"])
    return f"would delete {row['source']}@{row['revision']} on {row['neuron']}, {size}"


def _row(row: dict[str, Any]) -> list[object]:
    used = row["last_used_unix_s"]
    return [
        row["neuron"],
        row["source"],
        row["revision"][:12],
        size_text(row["num_bytes"] + row["partial_bytes"]),
        _state(row),
        ", ".join(row["models"]) or NO_MODEL,
        ", ".join(row["used_by"]),
        "" if used is None else datetime.fromtimestamp(used, UTC).strftime("%Y-%m-%d"),
        size_text(row["disk_free_bytes"]),
    ]


def _state(row: dict[str, Any]) -> str:
    if not row["is_partial"]:
        return "whole"
    there = row["num_bytes"] + row["partial_bytes"]
    share = f" {there / row['wanted_bytes']:.0%}" if row["wanted_bytes"] else ""
    return f"partial{share}"
