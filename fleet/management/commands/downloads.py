from __future__ import annotations

from fleet.management import verbs
from fleet.management.backend import download_line
from fleet.nouns import DOWNLOADS

LISTED = verbs.cells("id", "kind", "source", "file", "neuron", "status", "created_at")


class Command(verbs.Command):
    help = "Downloads: files on their way to neurons. models pull starts one."
    subcommands = (
        verbs.List(DOWNLOADS, "pulls and deletions of files, newest first", columns=LISTED),
        verbs.Show(DOWNLOADS, "one download"),
        verbs.Do(DOWNLOADS, "end a download that is under way", name="cancel", line=download_line),
    )
