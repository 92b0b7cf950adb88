"""Forgets old ledger entries. Hourly sums stay: they hold what reports are made of."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from metering.models import LedgerEntry

ENTRIES_PER_BATCH = 1000
MAX_BATCHES = 200
"""How many batches one call deletes: the control has other work. The next call continues."""


def ledger_entries_forget(*, older_than: timedelta) -> int:
    """How many; in small transactions, so that writers wait for none for long."""
    cutoff = timezone.now() - older_than
    num_forgotten = 0
    for _ in range(MAX_BATCHES):
        old = LedgerEntry.objects.filter(at__lt=cutoff).order_by("at")
        ids = list(old.values_list("pk", flat=True)[:ENTRIES_PER_BATCH])
        LedgerEntry.objects.filter(pk__in=ids).delete()
        num_forgotten += len(ids)
        if len(ids) < ENTRIES_PER_BATCH:
            break
    return num_forgotten
