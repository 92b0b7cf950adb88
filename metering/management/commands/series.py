"""``manage.py series``: figures by time."""

from __future__ import annotations

from fleet.management import verbs
from metering.nouns import SERIES

OF_DEVICES = ("at", "busy_percent", "memory_used_bytes", "memory_bytes")
OF_OTHERS = (
    *("at", "requests", "failed", "refused", "first_token_p95_ms", "total_p95_ms"),
    *("prompt_tokens_per_s", "completion_tokens_per_s", "queue_depth"),
)


class ListSeries(verbs.List):
    def run(self, run: verbs.Run) -> None:
        found = run.ask("GET", self.list_path(run))
        columns = verbs.cells(*(OF_DEVICES if found["kind"] == "device" else OF_OTHERS))
        run.show(found, verbs.rows_text(columns, found["data"]))


class Command(verbs.Command):
    help = "Requests, errors, times, tokens, queues and devices by time, for thirty days."
    subcommands = (ListSeries(SERIES, "figures by time of the fleet or a part of it"),)
