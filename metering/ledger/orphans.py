"""Releases dead gateways' reservations that no bill has settled.

The bills of a dead gateway, and their reservations with them, are settled by the next gateway of
its data directory within seconds (``metering.ledger.spool``). The rest was never submitted, or its
data directory is still missing.

While the database was offline no lease was renewed and no bill written: late ones have ``PAUSE_S``
to come first. A gateway that was restarted meanwhile writes the bills of the one before it, which
need their reservations.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from itertools import groupby

from fleet.control.leadership import Leadership
from metering.ledger import store
from metering.ledger.entries import Release
from metering.models import GatewayLease, Reservation

logger = logging.getLogger(__name__)

RELEASES_PER_BATCH = 200
SWEEP_GRACE_S = 5
"""After the lease, for the bills. With the lease (``pending_writes.LEASE_S``) and the interval of
the sweeps nothing stays reserved for more than 30 s after its gateway's death."""
LEASE_KEPT_S = 86_400


def reservations_sweep(*, now_unix_s: float, using: str = "default") -> int:
    """Releases the reservations of gateways without a lease; returns the number of requests."""
    leases = GatewayLease.objects.using(using)
    alive = leases.filter(lease_until_unix_s__gte=int(now_unix_s) - SWEEP_GRACE_S)
    orphans = Reservation.objects.using(using).exclude(gateway_id__in=alive.values("gateway_id"))
    rows = orphans.order_by("request_id").values_list("request_id", "budget_id")
    releases = [
        Release(request_id=id, budgets=tuple(budget for _, budget in held))
        for id, held in groupby(rows, key=lambda row: row[0])
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
    return len(releases)


PAUSE_S = 15.0
"""Three renewals of a lease, and several scans for the files of dead gateways."""


class SweepPause:
    def __init__(self, control: Leadership, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``control`` has the same clock. A new leader does not know for how long the database was
        offline."""
        self._control = control
        self._clock = clock
        self._database_failed_s = float("-inf")

    def database_failed(self) -> None:
        self._database_failed_s = self._clock()

    @property
    def is_over(self) -> bool:
        began_s = self._control.term_began_s
        since_s = max(self._database_failed_s, float("-inf") if began_s is None else began_s)
        return self._clock() - since_s >= PAUSE_S
