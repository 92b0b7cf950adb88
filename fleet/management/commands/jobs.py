"""``manage.py jobs``."""

from __future__ import annotations

from fleet.management.following import job_line
from fleet.management.rows import DoToRow, ListRows, ShowRow, SubcommandsCommand, cells
from fleet.nouns import JOBS

LISTED = cells("id", "kind", "model", "neuron", "status", "created_at", "requested_by")


class Command(SubcommandsCommand):
    help = "Jobs: loads, unloads, reloads and sleeps. models load starts one."
    subcommands = (
        ListRows(JOBS, "loads, unloads, reloads and sleeps, newest first", columns=LISTED),
        ShowRow(JOBS, "one job"),
        DoToRow(JOBS, "end a job that is under way", name="cancel", line=job_line),
    )
