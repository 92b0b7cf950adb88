"""``manage.py audit``."""

from __future__ import annotations

import json

from fleet.management.rows import Columns, ListRows, SubcommandsCommand, cells
from fleet.nouns import AUDIT

AUDITED: Columns = {
    **cells("at", "actor", "action"),
    "object": lambda row: row["object_id"],
    "detail": lambda row: json.dumps(row["detail"]) if row["detail"] else "",
}


class Command(SubcommandsCommand):
    help = "The audit: who changed what."
    subcommands = (ListRows(AUDIT, "who changed what, newest first", columns=AUDITED),)
