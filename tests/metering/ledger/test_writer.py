"""The writer's thread against real databases: operations are written in order and once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connections

from inference.gateway.database import FIRST_WAIT_S, READ_WAIT_S
from metering import request_records
from metering.errors import LedgerUnavailableError
from metering.key_directory import LOOK_UP_TIMEOUT_S
from metering.ledger.entries import Granted, Narrow
from metering.ledger.pending_writes import PendingWrites
from metering.ledger.writer import DELAYS_S, RESERVE_TIMEOUT_S
from metering.models import GatewayLease, LedgerEntry, RequestRecord, Reservation, UsageHour
from tests.cases import each_case
from tests.metering.databases import LONG_S, Gateway, amounts, clear, wait_until
from tests.metering.operations import make_budget, narrow, release, reserve, settle
from tests.metering.request_records.records import ended


@pytest.fixture
def gateway(using: str) -> Iterator[Gateway]:
    with asyncio.Runner() as runner:
        gateway = Gateway(using, runner, max_queued=100)
        gateway.start()
        yield gateway
        gateway.database.is_away = False
        gateway.writer.close(LONG_S)


def test_from_reservation_to_entry(
    using: str, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, leases = make_budget(using), GatewayLease.objects.using(using)
    gateway.database.is_locked = True
    assert gateway.reserve("r0", budgets=(), num_choices=3) == Granted(output_tokens=198)
    gateway.writer.settle(settle("r0", budgets=(), prompt_tokens=0, completion_tokens=0))
    gateway.flush()
    assert not leases.exists(), "nothing is reserved"
    LedgerEntry.objects.using(using).all().delete()
    assert gateway.reserve(budgets=(id,)) == Granted(output_tokens=200)
    assert not gateway.database.is_locked, "it was tried again unseen"
    assert amounts(using, id) == (0, 300)
    assert leases.get().gateway_id == "g1" and leases.get().lease_until_unix_s > time.time()
    gateway.writer.narrow(narrow(budgets=(id,)))
    wait_until(lambda: amounts(using, id) == (0, 250))
    assert Reservation.objects.using(using).get().amount == 250
    monkeypatch.setitem(DELAYS_S, Narrow, LONG_S)
    gateway.writer.narrow(narrow(budgets=(id,), prompt_tokens=49))
    for completion_tokens in (30, 99, 98):
        gateway.writer.settle(settle(budgets=(id,), completion_tokens=completion_tokens))
        gateway.flush()
        assert amounts(using, id) == (70, 0), "a second one charges nothing"
    together = [[type(op).__name__ for op in batch] for batch in gateway.database.batches]
    assert ["Narrow", "Settle"] in together, "it waits for company"
    assert not Reservation.objects.using(using).exists()
    entry = LedgerEntry.objects.using(using).get()
    assert (entry.request_id, entry.prompt_tokens, entry.cached_tokens) == ("r1", 40, 10)
    assert (entry.completion_tokens, entry.reasoning_tokens, entry.outcome) == (30, 5, "finished")
    hour = UsageHour.objects.using(using).get()
    assert (hour.requests, hour.failed_requests, hour.prompt_tokens) == (2, 0, 40)
    leases.all().delete()
    gateway.writer._pending._lease_due_s = 0.0
    gateway.writer.settle(settle("free too", budgets=()))
    gateway.flush()
    assert leases.exists(), "it is renewed"
    gateway.writer.close(LONG_S)
    assert leases.get().lease_until_unix_s <= time.time()


def test_a_close_writes_records_and_says_what_it_leaves(
    using: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: object, **__: object) -> None:
        raise OperationalError("the server is gone")

    with asyncio.Runner() as runner:
        first, second = (Gateway(using, runner, gateway_id=name) for name in ("g1", "g2"))
        for each in (first, second):
            each.start()
        put = first.writer._put

        def flushed_at_once(*write: Any) -> None:
            """The thread is faster than its closer."""
            put(*write)
            wait_until(lambda: first.writer.depth == 0)

        monkeypatch.setattr(first.writer, "_put", flushed_at_once)
        first.writer.record(ended())
        thread = first.writer._thread
        first.writer.close(LONG_S)
        assert thread is not None and not thread.is_alive
        assert RequestRecord.objects.using(using).count() == 1
        assert "not recorded" not in caplog.text
        monkeypatch.setattr(request_records, "figures_add", away)
        second.writer.record(ended())
        thread = second.writer._thread
        second.writer.close(0.05)
        assert "1 requests are not recorded: the gateway stops" in caplog.text
        assert thread is not None
        thread.join(LONG_S)


def test_a_release_and_a_caller_that_leaves_hold_nothing(using: str, gateway: Gateway) -> None:
    id = make_budget(using)
    gateway.flush()
    num_batches = len(gateway.database.batches)
    assert gateway.reserve("free", budgets=(), output_tokens=7) == Granted(output_tokens=7)
    gateway.writer.narrow(narrow("free", budgets=()))
    gateway.writer.release(release("free", budgets=()))
    gateway.flush()
    assert len(gateway.database.batches) == num_batches, "without budgets nothing is written"
    gateway.reserve(budgets=(id,))
    gateway.writer.release(release(budgets=(id,)))

    async def leave() -> None:
        caller = asyncio.create_task(gateway.writer.reserve(reserve("r2", budgets=(id,))))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller

    gateway.run(leave())
    gateway.flush()
    assert amounts(using, id) == (0, 0)
    assert not Reservation.objects.using(using).exists()
    assert not LedgerEntry.objects.using(using).exists()


def test_an_outage_refuses_reservations_and_keeps_the_rest(using: str, gateway: Gateway) -> None:
    id = make_budget(using)
    gateway.reserve(budgets=(id,))
    gateway.flush()
    gateway.database.is_away = True
    gateway.writer.settle(settle(budgets=(id,)))
    with pytest.raises(LedgerUnavailableError):
        gateway.reserve("r2", budgets=(id,))
    assert gateway.writer.depth == 2 and gateway.writer.age_s > 0
    assert not gateway.run(gateway.writer.flush(0.05)), "it takes too long"
    for number in range(100):
        gateway.writer.settle(settle(f"q{number}", budgets=()))
    assert gateway.writer.is_full
    with pytest.raises(LedgerUnavailableError):
        gateway.reserve("new", budgets=())
    gateway.writer.settle(settle("late", budgets=()))
    gateway.database.is_away = False
    gateway.flush()
    assert (gateway.writer.depth, gateway.writer.age_s, gateway.writer.is_full) == (0, 0, False)
    assert amounts(using, id) == (70, 0) and LedgerEntry.objects.using(using).count() == 102
    gateway.reserve("r3", budgets=(id,))
    gateway.flush()
    gateway.database.breaks_after_commit = True
    gateway.writer.settle(settle("r3", budgets=(id,)))
    gateway.flush()
    gateway.database.breaks_after_commit = True
    with pytest.raises(LedgerUnavailableError):  # who cannot learn of a reservation has none
        gateway.reserve("r4", budgets=(id,))
    gateway.flush()
    assert amounts(using, id) == (140, 0)
    assert not Reservation.objects.using(using).exists()


def test_a_database_that_stands_still_is_noticed_in_time(
    using: str, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the query and does not answer; who comes later is refused without asking it. A request
    may wait for the catalogue and then for the ledger, or for its key."""
    assert READ_WAIT_S + RESERVE_TIMEOUT_S < 5 and max(LOOK_UP_TIMEOUT_S, FIRST_WAIT_S) < 5
    id = make_budget(using)
    gateway.reserve("r0", budgets=(id,))
    monkeypatch.setattr("metering.ledger.writer.RESERVE_TIMEOUT_S", 0.1)
    other = connections[using].copy()
    try:
        if other.vendor == "postgresql":
            other.set_autocommit(False)
            other.cursor().execute("LOCK TABLE metering_budget IN ACCESS EXCLUSIVE MODE")
        else:
            other.ensure_connection()
            other.connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnavailableError):
            gateway.reserve("r1", budgets=(id,))
        # Its reservation stands still, and the release of it waits.
        wait_until(lambda: (gateway.writer.depth, gateway.writer.age_s > 0.1) == (2, True))
        with pytest.raises(LedgerUnavailableError):
            gateway.reserve("r2", budgets=(id,))
        assert gateway.writer.depth == 2
    finally:
        other.connection.rollback()
        other.close()
    gateway.flush()
    assert amounts(using, id) == (0, 300)
    assert Reservation.objects.using(using).get().request_id == "r0"


@each_case("fault", ["refuses", "panics"])
def test_one_that_cannot_be_written_does_not_hold_up_the_others(
    using: str,
    gateway: Gateway,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    """One that raises what is no exception used to end the thread: nothing was written any more."""
    clear(using)
    id = make_budget(using)
    gateway.reserve("r1", budgets=(id,))
    gateway.reserve("r2", budgets=(id,))
    setattr(gateway.database, fault, "r1")
    gateway.writer.settle(settle("r1", budgets=(id,)))
    gateway.writer.settle(settle("r2", budgets=(id,)))
    with pytest.raises(LedgerUnavailableError):
        gateway.reserve("r1", budgets=(id,))
    gateway.flush()
    written = LedgerEntry.objects.using(using).values_list("request_id", flat=True)
    assert list(written) == ["r2"]
    if fault == "refuses":
        assert amounts(using, id) == (70, 0)
        assert "cannot be written and is dropped" in caplog.text
    setattr(gateway.database, fault, None)
    real_write, errors = PendingWrites.write, [ValueError("no"), SystemExit(1)]

    def write(pending: PendingWrites) -> None:
        if errors:
            raise errors.pop()
        real_write(pending)

    monkeypatch.setattr(PendingWrites, "write", write)
    gateway.writer.settle(settle("r3", budgets=()))
    gateway.flush()
    assert (errors, set(written.all())) == ([], {"r2", "r3"}), "a writer that breaks continues"
