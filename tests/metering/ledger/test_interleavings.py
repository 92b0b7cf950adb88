"""Two gateways, their deaths, retries, duplicates, files that are adopted and sweeps, in any
order, on SQLite and on PostgreSQL: no cap is passed, and everything is charged once.

The gateways' part is ``metering.ledger.pending_writes`` itself, without its thread.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import OperationalError
from msgspec.structs import replace

from metering.ledger import store
from metering.ledger.entries import Granted, Operation, Reserve, Settle
from metering.ledger.pending_writes import Outcome, PendingWrite, PendingWrites, Waiter
from metering.models import Budget, GatewayLease, LedgerEntry, Reservation, UsageHour
from metering.money import Prices
from metering.request_records import RecordQueue
from tests.cases import each_case
from tests.metering.databases import Database, clear
from tests.metering.operations import NOON_UNIX_S, make_budget, narrow, release, reserve, settle

PRICES = Prices(input_micro_usd=200_000, cached_input_micro_usd=50_000, output_micro_usd=700_000)
FAR_AHEAD_S = 100_000
TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens")


@dataclass
class Gateway:
    name: str
    pending: PendingWrites
    database: Database

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


@dataclass
class Request:
    gateway: Gateway
    asked: Reserve
    waiter: Waiter
    bill: Settle | None = None
    is_gone: bool = False
    """Given up before it was submitted."""

    @property
    def granted(self) -> int | None:
        outcome = self.waiter.result() if self.waiter.done() else None
        return outcome.output_tokens if isinstance(outcome, Granted) else None


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
        self.files: list[list[Settle]] = []
        self.requests: dict[str, Request] = {}
        self.budgets = [
            make_budget(using, cap=600),
            make_budget(using, cap=900, window="day"),
            make_budget(using, cap=500, window="seconds", window_s=3600),
            make_budget(using, cap=300, unit="micro_usd"),
        ]
        self.num_gateways = 0
        self.gateways = [self.new_gateway(), self.new_gateway()]

    def new_gateway(self) -> Gateway:
        self.num_gateways += 1
        name, database = f"g{self.num_gateways}", Database()
        own: Any = {"apply": database.apply, "clock": lambda: self.now_unix_s}
        own |= {"notify": notify_at_once, "records": RecordQueue(using=self.using)}
        return Gateway(name, PendingWrites(name, using=self.using, **own), database)

    def step(self) -> None:
        happens = [self.ask] * 4 + [self.write] * 3 + [self.finish] * 3
        happens += [self.count_the_prompt, self.find_the_prompt_longer, self.give_up]
        happens += [self.kill, self.settle_for_the_dead, self.sweep, self.time_passes]
        self.chance.choice(happens)()
        self.check()

    def runs(self, request: Request) -> bool:
        is_over = request.is_gone or request.bill is not None
        return request.granted is not None and not is_over and request.gateway in self.gateways

    def any_running(self) -> Request | None:
        running = [one for one in self.requests.values() if self.runs(one)]
        return self.chance.choice(running) if running else None

    def submit(self, request: Request) -> None:
        self.now_unix_s += 1
        request.asked = replace(request.asked, now_unix_s=self.now_unix_s)
        request.waiter = self.loop.create_future()
        request.gateway.queue(request.asked, request.waiter)
        if self.chance.random() < 0.7:
            request.gateway.write()

    def ask(self) -> None:
        gateway = self.chance.choice(self.gateways)
        bound = self.chance.choice([(0,), (0, 1, 2, 3), (1, 3), (2,), (0, 2), ()])
        asked = reserve(
            f"r{len(self.requests)}",
            gateway_id=gateway.name,
            budgets=tuple(self.budgets[one] for one in bound),
            prompt_tokens=self.chance.randrange(121),
            output_tokens=self.chance.choice([None, self.chance.randrange(121)]),
            default_output_tokens=150,
            prices=PRICES,
        )
        request = Request(gateway, asked, self.loop.create_future())
        self.requests[asked.request_id] = request
        self.submit(request)

    def write(self) -> None:
        gateway = self.chance.choice(self.gateways)
        fault = self.chance.choice(["", "", "", "is_away", "breaks_after_commit", "is_locked"])
        if fault:
            setattr(gateway.database, fault, True)
        gateway.write(once=True)

    def count_the_prompt(self) -> None:
        if request := self.any_running():
            fewer = max(0, request.asked.prompt_tokens - self.chance.randrange(1, 100))
            asked = request.asked = replace(request.asked, prompt_tokens=fewer)
            counts = {"prompt_tokens": fewer, "output_tokens": request.granted, "prices": PRICES}
            request.gateway.queue(narrow(asked.request_id, budgets=asked.budgets, **counts))

    def find_the_prompt_longer(self) -> None:
        """Its neuron has refused it, and runs it once its length is reserved."""
        if request := self.any_running():
            more = request.asked.prompt_tokens + self.chance.randrange(1, 200)
            request.asked = replace(request.asked, prompt_tokens=more)
            self.submit(request)

    def give_up(self) -> None:
        if request := self.any_running():
            request.is_gone = True
            request.gateway.queue(release(request.asked.request_id, request.asked.budgets))

    def finish(self) -> None:
        if request := self.any_running():
            bill = self.end(request, self.chance.randrange(5))
            for _ in range(self.chance.choice([1, 2])):
                request.gateway.queue(bill)

    def end(self, request: Request, share: int) -> Settle:
        asked, granted = request.asked, request.granted
        assert granted is not None
        self.now_unix_s += 1
        used = (asked.prompt_tokens, asked.prompt_tokens // 3, granted * share // 4)
        facts = {"prices": PRICES, "ended_unix_s": self.now_unix_s}
        request.bill = settle(
            asked.request_id, budgets=asked.budgets, **dict(zip(TOKENS, used, strict=True)), **facts
        )
        return request.bill

    def kill(self, index: int | None = None) -> None:
        """Its unwritten operations are lost but for the bills in its file, which has one of each
        request that has run. Another gateway has yet to find it."""
        index = self.chance.randrange(2) if index is None else index
        gateway = self.gateways[index]
        own = [one for one in self.requests.values() if one.gateway is gateway]
        for request in own:
            if self.runs(request):
                self.end(request, 1)
        self.files.append([one.bill for one in own if one.bill is not None])
        self.gateways[index] = self.new_gateway()

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

    def time_passes(self) -> None:
        self.now_unix_s += self.chance.choice([1, 600, 3600, 40_000])

    def check(self) -> None:
        reservations = Reservation.objects.using(self.using)
        for row in reservations.all():
            request = self.requests[row.request_id]
            if request.gateway in self.gateways and not request.gateway.pending.depth:
                assert self.runs(request), "it holds what nobody uses"
        entries = list(LedgerEntry.objects.using(self.using).all())
        for entry in entries:
            bill = self.requests[entry.request_id].bill
            assert [getattr(entry, name) for name in TOKENS] == [getattr(bill, n) for n in TOKENS]
        hours = UsageHour.objects.using(self.using).all()
        assert sum(hour.requests for hour in hours) == len(entries)
        cost_micro_usd = sum(entry.cost_micro_usd for entry in entries)
        assert sum(hour.cost_micro_usd for hour in hours) == cost_micro_usd
        for budget in Budget.objects.using(self.using).all():
            held = reservations.filter(budget=budget)
            assert budget.reserved == sum(row.amount for row in held)
            assert budget.spent + budget.reserved <= budget.cap
            asked = {one.request_id: self.requests[one.request_id].asked for one in entries}
            own = [one for one in entries if budget.id in asked[one.request_id].budgets]
            costs = [one.cost_micro_usd for one in own]
            if budget.unit == "tokens":
                costs = [one.prompt_tokens + one.completion_tokens for one in own]
            assert 0 <= budget.spent <= sum(costs)
            assert budget.window != "balance" or budget.spent == sum(costs)


@each_case("seed", range(8))
def test_any_interleaving(using: str, seed: int) -> None:
    with asyncio.Runner() as runner:
        fleet = Fleet(using, random.Random(seed), runner.get_loop())
        for _ in range(50):
            fleet.step()
        for index, gateway in enumerate(fleet.gateways):
            gateway.write()
            fleet.kill(index)
        fleet.sweep()  # whatever has happened: once all is written and settled, the sums are right
        fleet.check()
    assert not Reservation.objects.using(using).exists()
    ran = {one.asked.request_id for one in fleet.requests.values() if one.bill is not None}
    assert set(LedgerEntry.objects.using(using).values_list("request_id", flat=True)) == ran
