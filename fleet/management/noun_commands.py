"""The subcommands of ``manage.py jobs``, ``downloads``, ``aliases``, ``settings`` and ``audit``."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass

from fleet.management.backend import LocalBackend
from fleet.management.download_progress import download_line
from fleet.management.following import job_line
from fleet.management.rows import (
    AddRow,
    ChangeRow,
    Columns,
    ListRows,
    RemoveRow,
    Row,
    ShowRow,
    add_id_argument,
    cells,
    row_path,
)
from fleet.management.subcommands import Run
from fleet.nouns import Noun
from fleet.nouns.of_fleet import ALIASES, AUDIT, DOWNLOADS, JOBS, SETTINGS

AUDITED: Columns = {
    **cells("at", "actor", "action"),
    "object": lambda row: row["object_id"],
    "detail": lambda row: json.dumps(row["detail"]) if row["detail"] else "",
}


@dataclass(frozen=True, kw_only=True)
class Cancel:
    noun: Noun
    help: str
    line: Callable[[Row], str]
    name: str = "cancel"

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_id_argument(parser, self.noun)

    def run(self, run: Run) -> None:
        path = f"{row_path(self.noun, run.options['id'])}/cancel"
        row = run.backend.ask("POST", path, {})
        run.show(row, self.line(row))


class ListSettings(ListRows):
    """Reads this command's own environment where no server is named."""

    def run(self, run: Run) -> None:
        super().run(run)
        if isinstance(run.backend, LocalBackend):
            run.stderr.write("As set for this command. For what a server has read: --url URL.")


JOB_COMMANDS = (
    ListRows(
        noun=JOBS,
        columns=cells("id", "kind", "model", "neuron", "status", "created_at", "requested_by"),
        help="loads, unloads, reloads and sleeps, newest first",
    ),
    ShowRow(noun=JOBS, help="one job"),
    Cancel(noun=JOBS, help="end a job that is under way", line=job_line),
)
DOWNLOAD_COMMANDS = (
    ListRows(
        noun=DOWNLOADS,
        columns=cells("id", "kind", "source", "file", "neuron", "status", "created_at"),
        help="pulls and deletions of files, newest first",
    ),
    ShowRow(noun=DOWNLOADS, help="one download"),
    Cancel(noun=DOWNLOADS, help="end a download that is under way", line=download_line),
)
ALIAS_COMMANDS = (
    ListRows(noun=ALIASES, columns=cells("name", "model"), help="all aliases"),
    ShowRow(noun=ALIASES, help="one alias"),
    AddRow(noun=ALIASES, help="give a model another name", positional=("name", "model")),
    ChangeRow(noun=ALIASES, help="point an alias at another model"),
    RemoveRow(noun=ALIASES, help="remove an alias"),
)
SETTING_COMMANDS = (
    ListSettings(
        noun=SETTINGS,
        columns=cells("name", "value", "default"),
        help="what this command, or the server of --url, read from its environment",
    ),
    ShowRow(noun=SETTINGS, help="one setting and what it means"),
)
AUDIT_COMMANDS = (ListRows(noun=AUDIT, columns=AUDITED, help="who changed what, newest first"),)
