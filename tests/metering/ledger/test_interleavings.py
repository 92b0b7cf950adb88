"""Two gateways, their deaths, retries, duplicates, the control's settling and its sweeps, in any
order, on SQLite and on PostgreSQL: no cap is passed, and everything is charged once.

The gateways' part is ``metering.ledger.pending_writes`` itself, without its thread; neurons are a
few lines that know what each request used.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
import redis
from django.db import OperationalError
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from inference.protocol.events import Usage
from inference.protocol.keys import gateway_alive_key, held_key, usage_key
from inference.protocol.usage_reports import (
    USAGE_REPORT_FIELD,
    UsageReport,
    encode_usage_report,
)
from metering.ledger import orphans, store, usage_reports
from metering.ledger.entries import Granted, Operation
from metering.ledger.pending_writes import Outcome, PendingWrite, PendingWrites, Waiter
from metering.ledger.receipts import Receipt
from metering.models import Budget, LedgerEntry, Reservation, UsageHour
from metering.prices import Prices
from tests.metering.databases import clear
from tests.metering.operations import NOON_UNIX_S, make_budget, narrow, release, reserve, settle
from tests.metering.reported_usage import RECEIPTS, receipt

PRICES = Prices(input_micro_usd=200_000, cached_input_micro_usd=50_000, output_micro_usd=700_000)
FAR_AHEAD_S = 100_000
FAULTS = (None, None, None, "before", "after", "locked")


class FlakyDatabase:
    """Fails once where it is told to: before the transaction, or after its commit."""

    def __init__(self) -> None:
        self.fault: str | None = None

    def apply(self, operations: Sequence[Operation], *, using: str) -> list[store.Result]:
        fault, self.fault = self.fault, None
        if fault == "locked":
            raise OperationalError("database is locked")
        if fault == "before":
            raise OperationalError("the server is gone")
        results = store.apply(operations, using=using)
        if fault == "after":
            raise OperationalError("the connection broke")
        return results


class ReportStream:
    """As much of Redis as the control needs of it."""

    def __init__(self) -> None:
        self.entries: dict[bytes, dict[bytes, bytes]] = {}
        self.alive: set[str] = set()
        self.num_added = 0
        self.replies: list[Any] = []
        self.loses_next_delete = False

    def add(self, report: UsageReport) -> None:
        self.num_added += 1
        self.entries[b"%d" % self.num_added] = {USAGE_REPORT_FIELD: encode_usage_report(report)}

    def pipeline(self, transaction: bool) -> ReportStream:
        return self

    def execute_command(self, *command: Any) -> None:
        """The two reads of ``fleet.live.neuron_reads``: a stream's entries and a hash's fields."""
        _eval, _script, _num_keys, key, _max_bytes, *rest = command
        if key == held_key("beast"):
            self.replies.append([None for _field in rest])
            return
        assert key == usage_key("beast")
        (count,) = rest
        self.replies.append(
            [
                [id, [word for pair in fields.items() for word in pair]]
                for id, fields in list(self.entries.items())[:count]
            ]
        )

    def execute(self, raise_on_error: bool) -> list[Any]:
        replies, self.replies = self.replies, []
        return replies

    def xdel(self, _name: str, *ids: bytes) -> None:
        if self.loses_next_delete:
            self.loses_next_delete = False
            raise redis.ConnectionError("the control dies here")
        for id in ids:
            del self.entries[id]

    def zrange(self, _name: str, _first: int, _last: int) -> list[bytes]:
        return [b"beast"]

    def hkeys(self, _name: str) -> list[bytes]:
        return []

    def exists(self, name: str) -> bool:
        return name in self.alive


@dataclass
class Request:
    id: str
    gateway: Gateway
    budgets: tuple[int, ...]
    prompt_tokens: int
    """The bound that is reserved."""
    output_tokens: int | None
    """Asked for."""
    waiter: Waiter
    num_output_tokens: int = 0
    """Granted."""
    used: Usage | None = None
    is_gone: bool = False
    """Refused, or given up before it was submitted."""
    ended_unix_s: float = 0.0


@dataclass
class Gateway:
    name: str
    pending: PendingWrites
    database: FlakyDatabase
    requests: list[Request] = field(default_factory=list)
    is_alive: bool = True

    def queue(self, operation: Operation, waiter: Waiter | None = None) -> None:
        self.pending.add(PendingWrite(operation, time.monotonic(), waiter))


def notify_at_once(completed: Sequence[tuple[Waiter, Outcome]]) -> None:
    for waiter, outcome in completed:
        if not waiter.done():
            waiter.set_result(outcome)


class Fleet(RuleBasedStateMachine):
    using = ""

    def __init__(self) -> None:
        super().__init__()
        clear(self.using)
        self.loop = asyncio.new_event_loop()
        self.now_unix_s = NOON_UNIX_S
        self.stream = ReportStream()
        self.requests: dict[str, Request] = {}
        self.num_gateways = 0
        self.opened: dict[int, tuple[int | None, int]] = {}
        """By budget: the end of its window of seconds, and the first entry since it opened."""
        self.budgets = (
            make_budget(self.using, cap=600),
            make_budget(self.using, cap=900, window="day"),
            make_budget(self.using, cap=500, window="seconds", window_s=3600),
            make_budget(self.using, cap=300, unit="micro_usd"),
        )
        self.gateways = [self.new_gateway(), self.new_gateway()]

    def teardown(self) -> None:
        """Whatever has happened: once all is written and settled, the sums are right."""
        self.stream.loses_next_delete = False
        try:
            for gateway in self.gateways:
                self.write(gateway)
                self.die(gateway)
            self.settle_reports()
            self.sweep()
            self.check_sums()
            assert not Reservation.objects.using(self.using).exists()
            ran = {request.id for request in self.requests.values() if request.used is not None}
            entries = LedgerEntry.objects.using(self.using).values_list("request_id", flat=True)
            assert set(entries) == ran
        finally:
            self.loop.close()

    def new_gateway(self) -> Gateway:
        self.num_gateways += 1
        name = f"g{self.num_gateways}"
        database = FlakyDatabase()
        pending = PendingWrites(
            name,
            using=self.using,
            notify=notify_at_once,
            apply=database.apply,
            clock=lambda: self.now_unix_s,
        )
        self.stream.alive.add(gateway_alive_key(name))
        return Gateway(name, pending, database)

    def write(self, gateway: Gateway) -> None:
        while gateway.pending.depth:
            try:
                gateway.pending.write()
            except OperationalError as error:
                gateway.pending.recover(error)

    def running(self, gateway: Gateway | None = None) -> list[Request]:
        """Granted, submitted and not ended."""
        return [
            request
            for request in self.requests.values()
            if (gateway is None or request.gateway is gateway)
            and request.gateway.is_alive
            and not request.is_gone
            and request.used is None
            and request.waiter.done()
            and self.is_granted(request)
        ]

    def is_granted(self, request: Request) -> bool:
        outcome = request.waiter.result()
        if not isinstance(outcome, Granted):
            request.is_gone = True
            return False
        request.num_output_tokens = outcome.output_tokens
        return True

    def pick(self, index: int, condition: Callable[[Request], bool]) -> Request | None:
        found = [request for request in self.running() if condition(request)]
        return found[index % len(found)] if found else None

    # What happens.

    @rule(
        which=st.integers(0, 1),
        bound=st.sampled_from([(0,), (0, 1, 2, 3), (1, 3), (2,), (0, 2), ()]),
        prompt_tokens=st.integers(0, 120),
        output_tokens=st.none() | st.integers(0, 120),
        is_written=st.sampled_from([True, True, False]),
    )
    def ask(
        self,
        which: int,
        bound: tuple[int, ...],
        prompt_tokens: int,
        output_tokens: int | None,
        is_written: bool,
    ) -> None:
        gateway = self.gateways[which]
        self.now_unix_s += 1
        request = Request(
            id=f"r{len(self.requests)}",
            gateway=gateway,
            budgets=tuple(self.budgets[index] for index in bound),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            waiter=self.loop.create_future(),
        )
        self.requests[request.id] = request
        self.reserve_for(request, is_written)

    def reserve_for(self, request: Request, is_written: bool) -> None:
        operation = reserve(
            request.id,
            gateway_id=request.gateway.name,
            budgets=request.budgets,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            default_output_tokens=150,
            prices=PRICES,
            now_unix_s=self.now_unix_s,
        )
        request.gateway.queue(operation, request.waiter)
        if is_written:
            self.write(request.gateway)

    @precondition(lambda self: any(gateway.pending.depth for gateway in self.gateways))
    @rule(which=st.integers(0, 1), fault=st.sampled_from(FAULTS))
    def write_one_batch(self, which: int, fault: str | None) -> None:
        gateway = self.gateways[which]
        if not gateway.pending.depth:
            gateway = self.gateways[1 - which]
        gateway.database.fault = fault
        try:
            gateway.pending.write()
        except OperationalError as error:
            gateway.pending.recover(error)

    @precondition(lambda self: self.running())
    @rule(index=st.integers(0, 99), less=st.integers(1, 99))
    def count_the_prompt(self, index: int, less: int) -> None:
        request = self.pick(index, lambda request: True)
        if request is not None:
            request.prompt_tokens = max(0, request.prompt_tokens - less)
            operation = narrow(
                request.id,
                budgets=request.budgets,
                prompt_tokens=request.prompt_tokens,
                output_tokens=request.num_output_tokens,
                prices=PRICES,
            )
            request.gateway.queue(operation)

    @precondition(lambda self: self.running())
    @rule(index=st.integers(0, 99), more=st.integers(1, 200), is_written=st.booleans())
    def find_the_prompt_longer_than_reserved(self, index: int, more: int, is_written: bool) -> None:
        """Its neuron has refused it, and runs it once its length is reserved."""
        request = self.pick(index, lambda request: True)
        if request is not None:
            self.now_unix_s += 1
            request.prompt_tokens += more
            request.waiter = self.loop.create_future()
            self.reserve_for(request, is_written)

    @precondition(lambda self: self.running())
    @rule(index=st.integers(0, 99), share=st.integers(0, 4), times=st.integers(1, 2))
    def finish(self, index: int, share: int, times: int) -> None:
        request = self.pick(index, lambda request: True)
        if request is not None:
            self.end(request, share)
            for _ in range(times):
                request.gateway.queue(self.settle_of(request))

    @precondition(lambda self: self.running())
    @rule(index=st.integers(0, 99))
    def give_up_before_it_is_submitted(self, index: int) -> None:
        request = self.pick(index, lambda request: True)
        if request is not None:
            request.is_gone = True
            request.gateway.queue(release(request.id, request.budgets))

    @precondition(lambda self: self.requests)
    @rule(which=st.integers(0, 1))
    def kill(self, which: int) -> None:
        self.die(self.gateways[which])
        self.gateways[which] = self.new_gateway()

    @precondition(lambda self: self.stream.entries)
    @rule(repeats=st.integers(1, 2), dies=st.booleans())
    def settle_for_the_dead(self, repeats: int, dies: bool) -> None:
        for _ in range(repeats):
            self.stream.loses_next_delete = dies
            with suppress(redis.ConnectionError):
                self.settle_reports()

    @precondition(lambda self: any(not each.gateway.is_alive for each in self.requests.values()))
    @rule()
    def sweep_up(self) -> None:
        self.stream.loses_next_delete = False
        self.settle_reports()
        self.sweep()
        names = [gateway.name for gateway in self.gateways]
        assert not Reservation.objects.using(self.using).exclude(gateway_id__in=names).exists()

    @rule(seconds=st.sampled_from([1, 600, 3600, 40_000]))
    def time_passes(self, seconds: int) -> None:
        self.now_unix_s += seconds

    # How.

    def end(self, request: Request, share: int) -> None:
        """No two things happen in one second: windows begin and end on whole ones."""
        self.now_unix_s += 1
        request.ended_unix_s = self.now_unix_s
        request.used = Usage(
            prompt_tokens=request.prompt_tokens,
            cached_tokens=request.prompt_tokens // 3,
            completion_tokens=request.num_output_tokens * share // 4,
        )

    def die(self, gateway: Gateway) -> None:
        """What it had not written is lost. Neurons cancel what they run for it, and tell of all
        that they have run."""
        for request in self.running(gateway):
            self.end(request, 1)
        gateway.is_alive = False
        self.stream.alive.discard(gateway_alive_key(gateway.name))
        for request in self.requests.values():
            if request.gateway is gateway and request.used is not None:
                self.stream.add(
                    UsageReport(
                        receipt=RECEIPTS.seal(self.receipt_of(request)),
                        usage=request.used,
                        outcome="cancelled",
                        started_unix_s=request.ended_unix_s,
                        ended_unix_s=request.ended_unix_s,
                    )
                )

    def receipt_of(self, request: Request) -> Receipt:
        return receipt(
            request.id,
            gateway_id=request.gateway.name,
            sealed_unix_s=request.ended_unix_s,
            input_micro_usd=PRICES.input_micro_usd,
            cached_input_micro_usd=PRICES.cached_input_micro_usd,
            output_micro_usd=PRICES.output_micro_usd,
            max_prompt_tokens=request.prompt_tokens,
            max_output_tokens=request.num_output_tokens,
        )

    def settle_reports(self) -> None:
        client: Any = self.stream
        usage_reports.usage_reports_settle(
            client=client, receipts=RECEIPTS, now_unix_s=self.now_unix_s, using=self.using
        )

    def sweep(self) -> None:
        """By a clock so far ahead that every lease has run out: live gateways show it in Redis."""
        client: Any = self.stream
        ahead_s = self.now_unix_s + FAR_AHEAD_S
        orphans.reservations_sweep(client=client, now_unix_s=ahead_s, using=self.using)

    def settle_of(self, request: Request) -> Operation:
        assert request.used is not None
        return settle(
            request.id,
            budgets=request.budgets,
            prompt_tokens=request.used.prompt_tokens,
            cached_tokens=request.used.cached_tokens,
            completion_tokens=request.used.completion_tokens,
            prices=PRICES,
            ended_unix_s=request.ended_unix_s,
        )

    @invariant()
    def only_what_runs_holds_anything(self) -> None:
        """Once its gateway has written all that it was told."""
        running = {request.id for request in self.running()}
        for row in Reservation.objects.using(self.using).all():
            gateway = self.requests[row.request_id].gateway
            if gateway.is_alive and not gateway.pending.depth:
                assert row.request_id in running

    @invariant()
    def check_sums(self) -> None:
        entries = list(LedgerEntry.objects.using(self.using).all())
        for entry in entries:
            used = self.requests[entry.request_id].used
            assert used is not None
            assert (entry.prompt_tokens, entry.cached_tokens, entry.completion_tokens) == (
                used.prompt_tokens,
                used.cached_tokens,
                used.completion_tokens,
            )
        hours = UsageHour.objects.using(self.using).all()
        assert sum(hour.requests for hour in hours) == len(entries)
        assert sum(hour.completion_tokens for hour in hours) == sum(
            entry.completion_tokens for entry in entries
        )
        for budget in Budget.objects.using(self.using).all():
            held = Reservation.objects.using(self.using).filter(budget=budget)
            assert budget.reserved == sum(row.amount for row in held)
            assert budget.spent + budget.reserved <= budget.cap
            in_window = [
                entry
                for entry in entries
                if budget.id in self.requests[entry.request_id].budgets
                and is_in_window(budget, entry.at.timestamp())
            ]
            if budget.window == "seconds":
                assert budget.spent <= used_of(budget, in_window)
                first_id = self.first_id_since_it_opened(budget, entries)
                in_window = [entry for entry in in_window if entry.id >= first_id]
                assert budget.spent >= used_of(budget, in_window)
            else:
                assert budget.spent == used_of(budget, in_window)

    def first_id_since_it_opened(self, budget: Budget, entries: list[LedgerEntry]) -> int:
        """A reservation that was written late opens a window in the past, which may hold entries
        that were written while none was open: those are charged to none."""
        ends_s, first_id = self.opened.get(budget.id, (None, 0))
        if ends_s != budget.window_ends_unix_s:
            first_id = max((entry.id for entry in entries), default=0) + 1
            self.opened[budget.id] = (budget.window_ends_unix_s, first_id)
        return first_id


def used_of(budget: Budget, entries: list[LedgerEntry]) -> int:
    if budget.unit == "micro_usd":
        return sum(entry.cost_micro_usd for entry in entries)
    return sum(entry.prompt_tokens + entry.completion_tokens for entry in entries)


def is_in_window(budget: Budget, at_unix_s: float) -> bool:
    if budget.window == "balance":
        return True
    ends_s = budget.window_ends_unix_s
    if ends_s is None:
        return False
    length_s = 86_400 if budget.window == "day" else budget.window_s
    assert length_s is not None
    return ends_s - length_s <= at_unix_s < ends_s


def drive(using: str, max_examples: int, steps: int) -> None:
    machine = type("FleetOnThis", (Fleet,), {"using": using})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=steps,
            deadline=None,
            phases=(
                Phase.reuse,
                Phase.generate,
            ),  # shrinking takes minutes, and is asked for by hand
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_any_interleaving(using: str) -> None:
    drive(using, max_examples=12, steps=40)


@pytest.mark.slow
@pytest.mark.limit_s(900)
def test_many_interleavings(using: str) -> None:
    drive(using, max_examples=60, steps=60)
