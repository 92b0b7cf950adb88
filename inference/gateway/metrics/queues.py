"""What a gateway has yet to write into the database, as metrics that are read at each scrape."""

from __future__ import annotations

from inference.gateway.metrics.requests import Metrics
from inference.gateway.request.reserve import Ledger
from inference.gateway.request.settle import RequestRecords


def watch_ledger(metrics: Metrics, ledger: Ledger) -> None:
    metrics.watch(
        "helexa_ledger_queue_operations",
        "What this gateway has yet to write into the ledger.",
        lambda: ledger.depth,
    )
    metrics.watch(
        "helexa_ledger_queue_age_seconds",
        "How long the oldest of that has waited.",
        lambda: ledger.age_s,
    )
    metrics.watch(
        "helexa_ledger_spooled_bills",
        "Bills that wait for the database in this gateway's data directory.",
        lambda: ledger.num_spooled,
    )


def watch_records(metrics: Metrics, records: RequestRecords) -> None:
    metrics.watch(
        "helexa_request_records_queued",
        "Requests that this gateway has yet to record.",
        lambda: records.depth,
    )
    metrics.watch_total(
        "helexa_request_records_dropped",
        "Requests that this gateway could not record.",
        lambda: records.num_dropped,
    )
