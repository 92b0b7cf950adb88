"""``manage.py series``: figures by time."""

from __future__ import annotations

from fleet.management.rows import (
    ListRows,
    Row,
    Run,
    SubcommandsCommand,
    cells,
    list_path,
    rows_text,
)
from metering.nouns import SERIES

SHOWN = {
    "fleet": ("at", "requests", "failed", "refused", "first_token_p95_ms", "total_p95_ms"),
    "device": ("at", "busy_percent", "memory_used_bytes", "memory_bytes"),
}
TOKENS_PER_S = ("prompt_tokens_per_s", "completion_tokens_per_s", "queue_depth")


class ListSeries(ListRows):
    def run(self, run: Run) -> None:
        found: Row = run.backend.ask("GET", list_path(self.noun, run.options))
        is_of_device = found["kind"] == "device"
        names = SHOWN["device"] if is_of_device else (*SHOWN["fleet"], *TOKENS_PER_S)
        rows = [
            {name: "" if row[name] is None else row[name] for name in names}
            for row in found["data"]
        ]
        run.show(found, rows_text(cells(*names), rows))


class Command(SubcommandsCommand):
    help = "Requests, errors, times, tokens, queues and devices by time, for thirty days."
    subcommands = (ListSeries(SERIES, "figures by time of the fleet or a part of it"),)
