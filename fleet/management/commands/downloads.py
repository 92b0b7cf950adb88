"""``manage.py downloads``."""

from __future__ import annotations

from fleet.management.following import download_line
from fleet.management.rows import DoToRow, ListRows, ShowRow, SubcommandsCommand, cells
from fleet.nouns import DOWNLOADS

LISTED = cells("id", "kind", "source", "file", "neuron", "status", "created_at")


class Command(SubcommandsCommand):
    help = "Downloads: files on their way to neurons. models pull starts one."
    subcommands = (
        ListRows(DOWNLOADS, "pulls and deletions of files, newest first", columns=LISTED),
        ShowRow(DOWNLOADS, "one download"),
        DoToRow(DOWNLOADS, "end a download that is under way", name="cancel", line=download_line),
    )
