"""Two gateways and their requests, for tests of what they do to one ledger in any order.

The gateways' part is ``metering.ledger.pending_writes`` itself, without its thread; neurons are a
few lines that know what each request used.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from django.db import OperationalError
from hypothesis.stateful import RuleBasedStateMachine

from inference.protocol.events import Usage
from metering.ledger import orphans, store
from metering.ledger.entries import Granted, Operation
from metering.ledger.pending_writes import Outcome, PendingWrite, PendingWrites, Waiter
from metering.models import Budget, GatewayLease, LedgerEntry
from metering.prices import Prices
from tests.metering.databases import clear
from tests.metering.operations import NOON_UNIX_S, make_budget, reserve, settle
from tests.metering.writer_support import Database


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
    database: Database
    requests: list[Request] = field(default_factory=list)
    is_alive: bool = True

    def queue(self, operation: Operation, waiter: Waiter | None = None) -> None:
        self.pending.add(PendingWrite(operation, time.monotonic(), waiter))


def notify_at_once(completed: Sequence[tuple[Waiter, Outcome]]) -> None:
    for waiter, outcome in completed:
        if not waiter.done():
            waiter.set_result(outcome)


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


PRICES = Prices(input_micro_usd=200_000, cached_input_micro_usd=50_000, output_micro_usd=700_000)
FAR_AHEAD_S = 100_000


class InterleavedGateways(RuleBasedStateMachine):
    """Two gateways on one ledger, and what may become of them and of their requests."""

    using = ""

    def __init__(self) -> None:
        super().__init__()
        clear(self.using)
        self.loop = asyncio.new_event_loop()
        self.now_unix_s = NOON_UNIX_S
        self.files: list[list[Operation]] = []
        self.requests: dict[str, Request] = {}
        self.num_gateways = 0
        self.budgets = (
            make_budget(self.using, cap=600),
            make_budget(self.using, cap=900, window="day"),
            make_budget(self.using, cap=500, window="seconds", window_s=3600),
            make_budget(self.using, cap=300, unit="micro_usd"),
        )
        self.gateways = [self.new_gateway(), self.new_gateway()]

    def new_gateway(self) -> Gateway:
        self.num_gateways += 1
        name = f"g{self.num_gateways}"
        database = Database()
        pending = PendingWrites(
            name,
            using=self.using,
            notify=notify_at_once,
            apply=database.apply,
            clock=lambda: self.now_unix_s,
        )
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
        """Its unwritten operations are lost but for the bills in its file, which has one of each
        request that has run. Another gateway has yet to find it."""
        for request in self.running(gateway):
            self.end(request, 1)
        gateway.is_alive = False
        self.files.append(
            [
                self.settle_of(request)
                for request in self.requests.values()
                if request.gateway is gateway and request.used is not None
            ]
        )

    def adopt_files(self) -> None:
        for bills in self.files:
            store.apply(bills, using=self.using)
        self.files.clear()

    def sweep(self) -> None:
        """Sweeps by a clock so far ahead that only the leases of live gateways stand."""
        ahead_s = int(self.now_unix_s + FAR_AHEAD_S)
        for gateway in self.gateways:
            if gateway.is_alive:
                GatewayLease.objects.using(self.using).update_or_create(
                    gateway_id=gateway.name, defaults={"lease_until_unix_s": ahead_s}
                )
        orphans.reservations_sweep(now_unix_s=ahead_s, using=self.using)

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
