"""Requests whose gateway died, settled by the control worker.

    neuron's account of a request ─▶ helexa:accounts ─▶ its one ledger entry; reservation gone
    no account, gateway gone for long ─────────────────▶ reservation released

An account is deleted from the stream when its entry is committed, and not before: whoever starts
next reads it again. Nothing is charged twice, because entries are unique by request id.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec
import redis

from inference.protocol.accounts import ACCOUNT_FIELD, RequestAccount, decode_request_account
from inference.protocol.events import Usage
from inference.protocol.held import decode_held_requests
from inference.protocol.keys import (
    ACCOUNTS,
    NEURON_WISHES,
    NEURONS,
    gateway_alive_key,
    held_key,
)
from metering import store
from metering.entries import Release, Settle
from metering.models import GatewayLease, Reservation
from metering.prices import FREE, Prices
from metering.receipts import Receipts

logger = logging.getLogger(__name__)

ACCOUNTS_PER_BATCH = 200
RELEASES_PER_BATCH = 200
SWEEP_GRACE_S = 120
"""After the lease. Neurons notice a dead gateway within seconds, and their accounts come before."""
LEASE_KEPT_S = 86_400

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,64}")
NOTHING_USED = Usage(prompt_tokens=0, completion_tokens=0)


def accounts_settle(
    *,
    client: redis.Redis,
    prices_of: Callable[[str], Prices | None],
    receipts: Receipts,
    now_unix_s: float,
    using: str = "default",
) -> int:
    """Settles every account in the stream; how many. Raises what Redis and the database raise:
    then the rest is still there."""
    num_settled = 0
    while entries := cast(
        list[tuple[bytes, dict[bytes, bytes]]], client.xrange(ACCOUNTS, count=ACCOUNTS_PER_BATCH)
    ):
        read = (_read(fields, receipts) for _, fields in entries)
        accounts = [account for account in read if account is not None]
        _settle(accounts, prices_of, now_unix_s, using)
        client.xdel(ACCOUNTS, *(entry_id for entry_id, _ in entries))
        num_settled += len(accounts)
    return num_settled


def reservations_sweep(*, client: redis.Redis, now_unix_s: float, using: str = "default") -> int:
    """Releases what gateways without a lease and without a sign of life have reserved; how many
    requests. Accounts come first: what can be settled must not be swept."""
    lapsed_s = int(now_unix_s) - SWEEP_GRACE_S
    leases = GatewayLease.objects.using(using)
    leased = leases.filter(lease_until_unix_s__gte=lapsed_s).values("gateway_id")
    orphans = Reservation.objects.using(using).exclude(gateway_id__in=leased)
    gateway_ids = set(orphans.values_list("gateway_id", flat=True).distinct())
    dead = sorted(id for id in gateway_ids if not client.exists(gateway_alive_key(id)))
    num_released = 0
    for gateway_id in dead:
        held = _held(orphans.filter(gateway_id=gateway_id).values_list("request_id", "budget_id"))
        known = _held_by_neurons(client, gateway_id)
        releases = [
            Release(request_id=id, budgets=budgets)
            for id, budgets in held.items()
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
    """Requests of that gateway that some neuron still works on: its account is to come."""
    known: set[str] = set()
    spoken = cast(list[bytes], client.zrange(NEURONS, 0, -1))
    invited = cast(list[bytes], client.hkeys(NEURON_WISHES))
    for name in {*spoken, *invited} - {b""}:
        listed = cast(bytes | None, client.hget(held_key(name.decode()), gateway_id))
        if listed is None:
            continue
        try:
            known.update(decode_held_requests(listed).request_ids)
        except msgspec.DecodeError as error:
            logger.warning("what neuron %s holds is not understood: %s", name, error)
    return known


def _read(fields: dict[bytes, bytes], receipts: Receipts) -> RequestAccount | None:
    """``None``, and a line in the log, for what no honest neuron of this version writes."""
    try:
        account = decode_request_account(fields.get(ACCOUNT_FIELD, b""))
    except msgspec.DecodeError as error:
        logger.error("an account that does not decode is not settled: %s", error)
        return None
    if not REQUEST_ID.fullmatch(account.request_id):
        logger.error("an account of neuron %r has no request's id", account.neuron)
        return None
    if not receipts.is_good(account.receipt, account.request_id, account.neuron):
        logger.error(
            "an account of request %s is not settled: neuron %r was not sent it",
            account.request_id,
            account.neuron,
        )
        return None
    return account


def _settle(
    accounts: list[RequestAccount],
    prices_of: Callable[[str], Prices | None],
    now_unix_s: float,
    using: str,
) -> None:
    prices = {model: prices_of(model) or FREE for model in {a.model for a in accounts}}
    ids = [account.request_id for account in accounts]
    rows = Reservation.objects.using(using).filter(request_id__in=ids)
    held = _held(rows.values_list("request_id", "budget_id"))
    settles = [
        settle_of(account, held.get(account.request_id, ()), prices[account.model], now_unix_s)
        for account in accounts
    ]
    if settles:
        store.apply(settles, using=using)


def settle_of(
    account: RequestAccount, budgets: tuple[int, ...], prices: Prices, now_unix_s: float
) -> Settle:
    """Times that cannot be are replaced by now: one far ahead would begin a budget's next
    window."""
    ended_s, started_s = account.ended_unix_s, account.started_unix_s
    if not 0 <= ended_s <= now_unix_s:
        ended_s = now_unix_s
    usage = account.usage or NOTHING_USED
    first_token_s = account.time_to_first_token_s
    return Settle(
        request_id=account.request_id,
        account=account.account,
        key=account.key,
        budgets=budgets,
        model=account.model,
        neuron=account.neuron,
        endpoint=account.endpoint,
        prompt_tokens=max(0, usage.prompt_tokens),
        cached_tokens=max(0, usage.cached_tokens),
        completion_tokens=max(0, usage.completion_tokens),
        reasoning_tokens=max(0, usage.reasoning_tokens),
        prices=prices,
        ended_unix_s=ended_s,
        duration_ms=_ms(ended_s - started_s, ended_s) or 0,
        time_to_first_token_ms=None if first_token_s is None else _ms(first_token_s, ended_s),
        outcome=account.code or account.outcome,
        client="",
    )


def _ms(seconds: float, most_s: float) -> int | None:
    return round(seconds * 1000) if 0 <= seconds <= most_s else None


def _held(rows: Iterable[Any]) -> dict[str, tuple[int, ...]]:
    """Budgets by request."""
    held: dict[str, tuple[int, ...]] = {}
    for request_id, budget_id in rows:
        held[request_id] = (*held.get(request_id, ()), budget_id)
    return held
