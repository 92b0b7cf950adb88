"""Releases dead gateways' reservations that no bill has settled.

The bills of a dead gateway, and their reservations with them, are settled by the next gateway of
its data directory within seconds (``metering.ledger.spool``). The rest was never submitted, or its
data directory is still missing.

A gateway counts as dead that two sweeps in a row find without a lease. While the database was
offline no lease was renewed and no bill written: between the two sweeps the late ones come, also
those of a gateway that was restarted meanwhile, which need their reservations.
"""

from __future__ import annotations

import logging
from itertools import groupby

from metering.ledger import store
from metering.ledger.entries import Release
from metering.models import GatewayLease, Reservation

logger = logging.getLogger(__name__)

RELEASES_PER_BATCH = 200
LEASE_KEPT_S = 86_400


def reservations_sweep(
    *, now_unix_s: float, suspects: frozenset[str], using: str = "default"
) -> frozenset[str]:
    """Releases the reservations of the gateways among ``suspects``, the result of the sweep before,
    that have no lease still. Returns those that have none now."""
    leases = GatewayLease.objects.using(using)
    alive = leases.filter(lease_until_unix_s__gte=int(now_unix_s)).values("gateway_id")
    orphans = Reservation.objects.using(using).exclude(gateway_id__in=alive)
    dead = frozenset(orphans.values_list("gateway_id", flat=True))
    rows = orphans.filter(gateway_id__in=dead & suspects).order_by("request_id")
    releases = [
        Release(request_id=id, budgets=tuple(budget for _, budget in held))
        for id, held in groupby(rows.values_list("request_id", "budget_id"), key=lambda row: row[0])
    ]
    for start in range(0, len(releases), RELEASES_PER_BATCH):
        store.apply(releases[start : start + RELEASES_PER_BATCH], using=using)
    if releases:
        logger.warning(
            "gateways died with %d requests that nobody has billed: what they had reserved is "
            "released",
            len(releases),
        )
    leases.filter(lease_until_unix_s__lt=now_unix_s - LEASE_KEPT_S).delete()
    return dead
