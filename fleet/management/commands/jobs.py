from __future__ import annotations

from fleet.management import verbs
from fleet.management.backend import job_line
from fleet.nouns import JOBS

LISTED = verbs.cells("id", "kind", "model", "neuron", "status", "created_at", "requested_by")


class Command(verbs.Command):
    help = "Jobs: loads, unloads, reloads and sleeps. models load starts one."
    subcommands = (
        verbs.List(JOBS, "loads, unloads, reloads and sleeps, newest first", columns=LISTED),
        verbs.Show(JOBS, "one job"),
        verbs.Do(JOBS, "end a job that is under way", name="cancel", line=job_line),
    )
