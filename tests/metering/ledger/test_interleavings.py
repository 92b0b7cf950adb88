"""Two gateways, their deaths, retries, duplicates, files that are adopted and sweeps, in any
order, on SQLite and on PostgreSQL: no cap is passed, and everything is charged once.

The gateways' part is ``metering.ledger.pending_writes`` itself, without its thread; neurons are a
few lines that know what each request used.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from django.db import OperationalError

from inference.protocol.events import Usage
from metering.ledger import store
from metering.ledger.entries import Granted, Operation
from metering.ledger.pending_writes import Outcome, PendingWrite, PendingWrites, Waiter
from metering.models import Budget, GatewayLease, LedgerEntry, Reservation, UsageHour
from metering.money import Prices
from tests.cases import each_case
from tests.metering.databases import Database, clear
from tests.metering.operations import NOON_UNIX_S, make_budget, narrow, release, reserve, settle

PRICES = Prices(input_micro_usd=200_000, cached_input_micro_usd=50_000, output_micro_usd=700_000)
FAR_AHEAD_S = 100_000
TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens")


@dataclass
class Request:
    id: str
    gateway: Gateway
    budgets: tuple[int, ...]
    prompt_tokens: int
    """The bound that is reserved."""
    output_tokens: int | None
    waiter: Waiter
    used: Usage | None = None
    is_gone: bool = False
    """Given up before it was submitted."""
    ended_unix_s: float = 0.0

    @property
    def granted(self) -> Granted | None:
        outcome = self.waiter.result() if self.waiter.done() else None
        return outcome if isinstance(outcome, Granted) else None

    @property
    def runs(self) -> bool:
        is_over = self.is_gone or self.used is not None or not self.gateway.is_alive
        return self.granted is not None and not is_over


@dataclass
class Gateway:
    name: str
    pending: PendingWrites
    database: Database = field(default_factory=Database)
    is_alive: bool = True

    def queue(self, operation: Operation, waiter: Waiter | None = None) -> None:
        self.pending.add(PendingWrite(operation, time.monotonic(), waiter))

    def write(self, *, once: bool = False) -> None:
        while self.pending.depth:
            try:
                self.pending.write()
            except OperationalError as error:
                self.pending.recover(error)
            self.database.is_away = False
            if once:
                break


def notify_at_once(completed: Sequence[tuple[Waiter, Outcome]]) -> None:
    for waiter, outcome in completed:
        if not waiter.done():
            waiter.set_result(outcome)


class Fleet:
    """Each step is one thing that happens to it, drawn by chance."""

    def __init__(self, using: str, chance: random.Random, loop: asyncio.AbstractEventLoop) -> None:
        clear(using)
        self.using, self.chance, self.loop = using, chance, loop
        self.now_unix_s = NOON_UNIX_S
        self.files: list[list[Operation]] = []
        self.requests: dict[str, Request] = {}
        self.num_gateways = 0
        self.budgets = (
            make_budget(using, cap=600),
            make_budget(using, cap=900),
            make_budget(using, cap=500),
            make_budget(using, cap=300, unit="micro_usd"),
        )
        self.gateways = [self.new_gateway(), self.new_gateway()]

    def new_gateway(self) -> Gateway:
        self.num_gateways += 1
        name, database = f"g{self.num_gateways}", Database()
        own = {"notify": notify_at_once, "apply": database.apply, "clock": lambda: self.now_unix_s}
        return Gateway(name, PendingWrites(name, using=self.using, **own), database)

    def step(self) -> None:
        happens = [self.ask] * 4 + [self.write] * 3 + [self.finish] * 3
        happens += [self.count_the_prompt, self.find_the_prompt_longer, self.give_up]
        happens += [self.kill, self.settle_for_the_dead, self.sweep]
        self.chance.choice(happens)()
        self.check()

    def any_running(self) -> Request | None:
        return self.chance.choice([one for one in self.requests.values() if one.runs] or [None])

    def reserve_for(self, request: Request) -> None:
        self.now_unix_s += 1
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
        if self.chance.random() < 0.7:
            request.gateway.write()

    def ask(self) -> None:
        bound = self.chance.choice([(0,), (0, 1, 2, 3), (1, 3), (2,), (0, 2), ()])
        request = Request(
            id=f"r{len(self.requests)}",
            gateway=self.chance.choice(self.gateways),
            budgets=tuple(self.budgets[index] for index in bound),
            prompt_tokens=self.chance.randrange(121),
            output_tokens=self.chance.choice([None, self.chance.randrange(121)]),
            waiter=self.loop.create_future(),
        )
        self.requests[request.id] = request
        self.reserve_for(request)

    def write(self) -> None:
        gateway = self.chance.choice(self.gateways)
        fault = self.chance.choice(["", "", "", "is_away", "breaks_after_commit", "is_locked"])
        if fault:
            setattr(gateway.database, fault, True)
        gateway.write(once=True)

    def count_the_prompt(self) -> None:
        if (request := self.any_running()) and (granted := request.granted):
            request.prompt_tokens = max(0, request.prompt_tokens - self.chance.randrange(1, 100))
            operation = narrow(
                request.id,
                budgets=request.budgets,
                prompt_tokens=request.prompt_tokens,
                output_tokens=granted.output_tokens,
                prices=PRICES,
            )
            request.gateway.queue(operation)

    def find_the_prompt_longer(self) -> None:
        """Its neuron has refused it, and runs it once its length is reserved."""
        if request := self.any_running():
            request.prompt_tokens += self.chance.randrange(1, 200)
            request.waiter = self.loop.create_future()
            self.reserve_for(request)

    def give_up(self) -> None:
        if request := self.any_running():
            request.is_gone = True
            request.gateway.queue(release(request.id, request.budgets))

    def finish(self) -> None:
        if request := self.any_running():
            self.end(request, self.chance.randrange(5))
            for _ in range(self.chance.choice([1, 2])):
                request.gateway.queue(self.settle_of(request))

    def end(self, request: Request, share: int) -> None:
        """No two things happen in one second: windows begin and end on whole ones."""
        granted = request.granted
        assert granted is not None
        self.now_unix_s += 1
        request.ended_unix_s = self.now_unix_s
        request.used = Usage(
            prompt_tokens=request.prompt_tokens,
            cached_tokens=request.prompt_tokens // 3,
            completion_tokens=granted.output_tokens * share // 4,
        )

    def settle_of(self, request: Request) -> Operation:
        assert request.used is not None
        used = {name: getattr(request.used, name) for name in TOKENS}
        used |= {"prices": PRICES, "ended_unix_s": request.ended_unix_s}
        return settle(request.id, budgets=request.budgets, **used)

    def kill(self, index: int | None = None) -> None:
        """Its unwritten operations are lost but for the bills in its file, which has one of each
        request that has run. Another gateway has yet to find it."""
        index = self.chance.randrange(2) if index is None else index
        gateway, self.gateways[index] = self.gateways[index], self.new_gateway()
        for request in self.requests.values():
            if request.gateway is gateway and request.runs:
                self.end(request, 1)
        gateway.is_alive = False
        own = [one for one in self.requests.values() if one.gateway is gateway]
        self.files.append([self.settle_of(one) for one in own if one.used is not None])

    def settle_for_the_dead(self) -> None:
        """Who adopts a file may die before it has removed it."""
        for bills in self.files:
            store.apply(bills, using=self.using)
        if self.chance.random() < 0.5:
            self.files.clear()

    def sweep(self) -> None:
        """By a clock so far ahead that only the leases of live gateways stand."""
        for bills in self.files:
            store.apply(bills, using=self.using)
        ahead_s = int(self.now_unix_s + FAR_AHEAD_S)
        leases, names = GatewayLease.objects.using(self.using), [one.name for one in self.gateways]
        leases.all().delete()
        for name in names:
            leases.create(gateway_id=name, lease_until_unix_s=ahead_s)
        dead: frozenset[str] = frozenset()
        for _ in range(2):
            dead = store.reservations_sweep(now_unix_s=ahead_s, suspects=dead, using=self.using)
        assert not Reservation.objects.using(self.using).exclude(gateway_id__in=names).exists()

    def check(self) -> None:
        for row in Reservation.objects.using(self.using).all():
            gateway = self.requests[row.request_id].gateway
            if gateway.is_alive and not gateway.pending.depth:
                assert self.requests[row.request_id].runs, "it holds what nobody uses"
        entries = list(LedgerEntry.objects.using(self.using).all())
        for entry in entries:
            used = self.requests[entry.request_id].used
            assert used is not None
            counts = {name: getattr(entry, name) for name in TOKENS}
            assert counts == {name: getattr(used, name) for name in TOKENS}
        hours = UsageHour.objects.using(self.using).all()
        assert sum(hour.requests for hour in hours) == len(entries)
        cost_micro_usd = sum(entry.cost_micro_usd for entry in entries)
        assert sum(hour.cost_micro_usd for hour in hours) == cost_micro_usd
        for budget in Budget.objects.using(self.using).all():
            held = Reservation.objects.using(self.using).filter(budget=budget)
            assert budget.reserved == sum(row.amount for row in held)
            assert budget.spent + budget.reserved <= budget.cap
            own = [one for one in entries if budget.id in self.requests[one.request_id].budgets]
            costs = [one.cost_micro_usd for one in own]
            if budget.unit == "tokens":
                costs = [one.prompt_tokens + one.completion_tokens for one in own]
            assert budget.spent == sum(costs)

    def finish_all(self) -> None:
        """Whatever has happened: once all is written and settled, the sums are right."""
        for index, gateway in enumerate(self.gateways):
            gateway.write()
            self.kill(index)
        self.sweep()
        self.check()
        assert not Reservation.objects.using(self.using).exists()
        ran = {request.id for request in self.requests.values() if request.used is not None}
        entries = LedgerEntry.objects.using(self.using).values_list("request_id", flat=True)
        assert set(entries) == ran


@each_case("seed", range(8))
def test_any_interleaving(using: str, seed: int) -> None:
    with asyncio.Runner() as runner:
        fleet = Fleet(using, random.Random(seed), runner.get_loop())
        for _ in range(50):
            fleet.step()
        fleet.finish_all()
