from __future__ import annotations

import json

from fleet.management import verbs
from fleet.nouns import AUDIT

AUDITED: verbs.Columns = {
    **verbs.cells("at", "actor", "action"),
    "object": lambda row: row["object_id"],
    "detail": lambda row: json.dumps(row["detail"]) if row["detail"] else "",
}


class Command(verbs.Command):
    help = "The audit: who changed what."
    subcommands = (verbs.List(AUDIT, "who changed what, newest first", columns=AUDITED),)
