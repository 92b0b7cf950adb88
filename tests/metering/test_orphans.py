"""Gateways that died: their requests are settled once by the neurons' accounts, or released."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.conf import settings
from django.db import OperationalError

from fleet import live, selectors, services
from inference.protocol.accounts import ACCOUNT_FIELD, RequestAccount, encode_request_account
from inference.protocol.events import Usage
from inference.protocol.held import HeldRequests, encode_held_requests
from inference.protocol.keys import ACCOUNTS, NEURONS, gateway_alive_key, held_key
from metering import orphans, store, tasks
from metering.actor import COMMAND
from metering.models import Budget, GatewayLease, LedgerEntry, Reservation, UsageHour
from metering.orphans import SWEEP_GRACE_S
from metering.prices import Prices
from metering.receipts import Receipts
from tests.metering.operations import make_budget, reserve, settle

pytestmark = pytest.mark.django_db(transaction=True)

NOW_UNIX_S = 1_800_000_000.0
RECEIPTS = Receipts(settings.SECRET_KEY)


def account(request_id: str = "r1", **changes: Any) -> RequestAccount:
    values: dict[str, Any] = {
        "request_id": request_id,
        "gateway_id": "g1",
        "account": "lab",
        "key": "hx-1",
        "model": "tiny",
        "neuron": "beast",
        "endpoint": "/v1/chat/completions",
        "usage": Usage(prompt_tokens=40, completion_tokens=30, cached_tokens=10),
        "outcome": "cancelled",
        "started_unix_s": NOW_UNIX_S - 3,
        "ended_unix_s": NOW_UNIX_S - 1,
        "time_to_first_token_s": 0.25,
    }
    values |= changes
    receipt = RECEIPTS.of(values["request_id"], values["neuron"])
    return RequestAccount(**{"receipt": receipt} | values)


@pytest.fixture(autouse=True)
def _fresh_catalogue() -> Iterator[None]:
    selectors.catalogue_cache_clear()
    yield
    selectors.catalogue_cache_clear()


def publish(client: redis.Redis, *accounts: RequestAccount) -> None:
    for each in accounts:
        client.xadd(ACCOUNTS, {ACCOUNT_FIELD: encode_request_account(each)})


def settle_all(client: redis.Redis) -> int:
    return orphans.accounts_settle(
        client=client,
        prices_of=selectors.catalogue_prices,
        receipts=RECEIPTS,
        now_unix_s=NOW_UNIX_S,
    )


def amounts(budget_id: int) -> tuple[int, int]:
    budget = Budget.objects.get(id=budget_id)
    return budget.spent, budget.reserved


def hold(request_id: str = "r1", **changes: Any) -> int:
    """A budget with a reservation of 300 tokens on it."""
    id = make_budget("default")
    store.apply([reserve(request_id, budgets=(id,), **changes)])
    assert amounts(id) == (0, 300)
    return id


def test_an_account_settles_its_request(redis_db: redis.Redis) -> None:
    id = hold()
    services.catalogue_model_create(
        actor=COMMAND,
        name="tiny",
        source="pypi:tiny",
        input_price_micro_usd=1_000_000,
        output_price_micro_usd=2_000_000,
        enabled=False,
    )
    publish(redis_db, account())
    assert settle_all(redis_db) == 1
    assert amounts(id) == (70, 0)
    entry = LedgerEntry.objects.get()
    assert (entry.request_id, entry.cost_micro_usd) == ("r1", 100)
    assert (entry.duration_ms, entry.time_to_first_token_ms) == (2000, 250)
    assert (entry.outcome, entry.neuron, entry.account) == ("cancelled", "beast", "lab")
    assert not Reservation.objects.exists()
    assert redis_db.xlen(ACCOUNTS) == 0


def test_what_is_settled_already_is_not_charged_again(redis_db: redis.Redis) -> None:
    id = hold()
    store.apply([settle(budgets=(id,), completion_tokens=10)])
    publish(redis_db, account(), account())
    assert settle_all(redis_db) == 2
    assert amounts(id) == (50, 0)
    assert UsageHour.objects.get().requests == 1


def test_a_reservation_of_a_settled_request_goes(redis_db: redis.Redis) -> None:
    """Its entry was written when nothing was held, as by a gateway that had no answer in time."""
    id = hold()
    store.apply([settle(budgets=())])
    publish(redis_db, account())
    settle_all(redis_db)
    assert amounts(id) == (0, 0)
    assert not Reservation.objects.exists()


def test_accounts_wait_for_the_database(
    redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = hold()
    publish(redis_db, account())
    monkeypatch.setattr(live, "redis_client", lambda: redis_db)

    def away(*_: object, **__: object) -> None:
        raise OperationalError("the server is gone")

    with monkeypatch.context() as patch:
        patch.setattr(store, "apply", away)
        tasks.settle_orphans()
    assert redis_db.xlen(ACCOUNTS) == 1
    tasks.settle_orphans()
    assert redis_db.xlen(ACCOUNTS) == 0
    assert amounts(id) == (70, 0)


def test_a_control_that_dies_before_it_deletes_charges_once(redis_db: redis.Redis) -> None:
    id = hold()
    publish(redis_db, account())
    entries = redis_db.xrange(ACCOUNTS)
    settle_all(redis_db)
    for _, fields in entries:
        redis_db.xadd(ACCOUNTS, fields)
    settle_all(redis_db)
    assert amounts(id) == (70, 0)


def test_nobody_accounts_for_another_neurons_request(
    redis_db: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    id = hold()
    of_another = RECEIPTS.of("r1", "beast")
    forged = account(neuron="intruder", receipt=of_another), account(receipt="")
    publish(redis_db, *forged, account("r2", receipt=of_another))
    assert settle_all(redis_db) == 0
    assert amounts(id) == (0, 300)
    assert caplog.text.count("was not sent it") == 3
    publish(redis_db, account())
    assert settle_all(redis_db) == 1
    assert amounts(id) == (70, 0)


def test_an_account_that_nobody_can_read_stops_none(
    redis_db: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    redis_db.xadd(ACCOUNTS, {ACCOUNT_FIELD: b"\xc1"})
    redis_db.xadd(ACCOUNTS, {b"x": b"y"})
    publish(redis_db, account("r\0"), account("x" * 65), account())
    assert settle_all(redis_db) == 1
    assert LedgerEntry.objects.get().request_id == "r1"
    assert "does not decode" in caplog.text and "no request's id" in caplog.text
    assert redis_db.xlen(ACCOUNTS) == 0


@pytest.mark.parametrize("ended_unix_s", [NOW_UNIX_S * 2, -1.0, float("nan"), float("inf")])
def test_times_and_counts_that_cannot_be(redis_db: redis.Redis, ended_unix_s: float) -> None:
    id = hold()
    usage = Usage(prompt_tokens=-5, completion_tokens=10**9)
    publish(redis_db, account(ended_unix_s=ended_unix_s, usage=usage, started_unix_s=float("nan")))
    settle_all(redis_db)
    entry = LedgerEntry.objects.get()
    assert entry.at.timestamp() == NOW_UNIX_S
    assert (entry.duration_ms, entry.prompt_tokens) == (0, 0)
    assert amounts(id) == (300, 0)


def test_many_accounts(redis_db: redis.Redis) -> None:
    publish(redis_db, *(account(f"r{number}") for number in range(450)))
    assert settle_all(redis_db) == 450
    assert LedgerEntry.objects.count() == 450
    assert UsageHour.objects.get().requests == 450


def lease(gateway_id: str, ago_s: float) -> None:
    until_s = int(NOW_UNIX_S - ago_s)
    GatewayLease.objects.create(gateway_id=gateway_id, lease_until_unix_s=until_s)


def sweep(client: redis.Redis) -> int:
    return orphans.reservations_sweep(client=client, now_unix_s=NOW_UNIX_S)


def test_a_dead_gateways_reservation_is_released(redis_db: redis.Redis) -> None:
    id = hold()
    lease("g1", SWEEP_GRACE_S + 1)
    assert sweep(redis_db) == 1
    assert amounts(id) == (0, 0)
    assert not LedgerEntry.objects.exists()
    assert GatewayLease.objects.exists()


def test_one_without_a_lease_is_dead_as_well(redis_db: redis.Redis) -> None:
    id = hold()
    assert sweep(redis_db) == 1
    assert amounts(id) == (0, 0)


def test_a_lease_or_a_sign_of_life_protects(redis_db: redis.Redis) -> None:
    id = hold()
    other = hold("r2", gateway_id="g2")
    lease("g1", SWEEP_GRACE_S - 1)
    lease("g2", SWEEP_GRACE_S + 1)
    redis_db.set(gateway_alive_key("g2"), b"1")
    assert sweep(redis_db) == 0
    assert amounts(id) == amounts(other) == (0, 300)
    redis_db.delete(gateway_alive_key("g2"))
    assert sweep(redis_db) == 1
    assert (amounts(id), amounts(other)) == ((0, 300), (0, 0))


def test_what_a_neuron_still_works_on_is_not_swept(redis_db: redis.Redis) -> None:
    id = hold()
    redis_db.zadd(NEURONS, {"beast": 1.0})
    listed = HeldRequests(epoch="e", beat=1, request_ids=["r1"])
    redis_db.hset(held_key("beast"), "g1", encode_held_requests(listed))
    assert sweep(redis_db) == 0
    assert amounts(id) == (0, 300)
    redis_db.hdel(held_key("beast"), "g1")
    assert sweep(redis_db) == 1
    assert amounts(id) == (0, 0)


def test_accounts_come_before_the_sweep(
    redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = hold()
    publish(redis_db, account())
    monkeypatch.setattr(live, "redis_client", lambda: redis_db)
    tasks.settle_orphans()
    assert amounts(id) == (70, 0)


def test_old_leases_are_forgotten(redis_db: redis.Redis) -> None:
    lease("long gone", 90_000)
    lease("not long", 100)
    sweep(redis_db)
    assert [row.gateway_id for row in GatewayLease.objects.all()] == ["not long"]


def test_prices_of_a_model_that_is_gone() -> None:
    assert selectors.catalogue_prices("gone") is None
    settled = orphans.settle_of(account(), (), Prices(), time.time())
    assert settled.cost_micro_usd == 0
