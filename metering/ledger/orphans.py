"""Releases what dead gateways have reserved, where no neuron reports the usage.

Usage reports are settled first (``metering.ledger.settlement``): a reservation that can be
settled must not be swept.
"""

from __future__ import annotations

import logging

import msgspec
import redis

from fleet.live.neuron_reads import NeuronValueError, fields_read
from inference.logs.throttled import ThrottledLog
from inference.protocol.held import MAX_HELD_BYTES, decode_held_requests
from inference.protocol.keys import gateway_alive_key, held_key
from metering.ledger import store
from metering.ledger.entries import Release
from metering.ledger.settlement import budgets_by_request, neuron_names
from metering.models import GatewayLease, Reservation

logger = logging.getLogger(__name__)
_log = ThrottledLog(logger, logging.WARNING)

RELEASES_PER_BATCH = 200
SWEEP_GRACE_S = 120
"""After the lease. Neurons notice a dead gateway within seconds, and report before that is over."""
HELD_LIMIT_S = 900
"""After the lease. Neurons cancel a dead gateway's requests within seconds, so one that lists them
for longer no longer holds a budget."""
LEASE_KEPT_S = 86_400


def reservations_sweep(*, client: redis.Redis, now_unix_s: float, using: str = "default") -> int:
    """Releases what gateways without a lease and without a sign of life have reserved; how many
    requests."""
    lapsed_s = int(now_unix_s) - SWEEP_GRACE_S
    leases = GatewayLease.objects.using(using)
    leased = leases.filter(lease_until_unix_s__gte=lapsed_s).values("gateway_id")
    orphans = Reservation.objects.using(using).exclude(gateway_id__in=leased)
    gateway_ids = set(orphans.values_list("gateway_id", flat=True).distinct())
    dead = sorted(id for id in gateway_ids if not client.exists(gateway_alive_key(id)))
    long_dead = set(
        leases.filter(lease_until_unix_s__lt=now_unix_s - HELD_LIMIT_S).values_list(
            "gateway_id", flat=True
        )
    )
    num_released = 0
    for gateway_id in dead:
        rows = orphans.filter(gateway_id=gateway_id).values_list("request_id", "budget_id")
        known = set() if gateway_id in long_dead else _held_by_neurons(client, gateway_id)
        releases = [
            Release(request_id=id, budgets=budgets)
            for id, budgets in budgets_by_request(rows).items()
            if id not in known
        ]
        for start in range(0, len(releases), RELEASES_PER_BATCH):
            store.apply(releases[start : start + RELEASES_PER_BATCH], using=using)
        if not releases:
            continue
        logger.warning(
            "gateway %s died with %d requests that no neuron knows: what they had reserved is "
            "released",
            gateway_id,
            len(releases),
        )
        num_released += len(releases)
    forgotten = leases.filter(lease_until_unix_s__lt=now_unix_s - LEASE_KEPT_S)
    forgotten.exclude(gateway_id__in=gateway_ids).delete()
    return num_released


def _held_by_neurons(client: redis.Redis, gateway_id: str) -> set[str]:
    """Requests of that gateway that some neuron still works on: it has yet to report them."""
    known: set[str] = set()
    for name in neuron_names(client):
        try:
            read = fields_read(held_key(name), [gateway_id], max_bytes=MAX_HELD_BYTES)
            (listed,) = read.run(client)
            if listed is not None:
                known.update(decode_held_requests(listed).request_ids)
        except (msgspec.DecodeError, NeuronValueError) as error:
            _log.log(name, f"what neuron {name} holds is not understood: {error}")
    return known
