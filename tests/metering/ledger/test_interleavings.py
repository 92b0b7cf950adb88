"""Two gateways, their deaths, retries, duplicates, files that are adopted and sweeps, in any
order, on SQLite and on PostgreSQL: no cap is passed, and everything is charged once."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from django.db import OperationalError
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from metering.models import Budget, LedgerEntry, Reservation, UsageHour
from tests.metering.ledger.interleaved_gateways import (
    PRICES,
    InterleavedGateways,
    Request,
    is_in_window,
    used_of,
)
from tests.metering.operations import narrow, release

FAULTS = ("", "", "", "is_away", "breaks_after_commit", "is_locked")


class Fleet(InterleavedGateways):
    def __init__(self) -> None:
        super().__init__()
        self.opened: dict[int, tuple[int | None, int]] = {}
        """The window of each budget: the end of its seconds, and the first entry since it
        opened."""

    def teardown(self) -> None:
        """Whatever has happened: once all is written and settled, the sums are right."""
        try:
            for gateway in self.gateways:
                self.write(gateway)
                self.die(gateway)
            self.adopt_files()
            self.sweep()
            self.check_sums()
            assert not Reservation.objects.using(self.using).exists()
            ran = {request.id for request in self.requests.values() if request.used is not None}
            entries = LedgerEntry.objects.using(self.using).values_list("request_id", flat=True)
            assert set(entries) == ran
        finally:
            self.loop.close()

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

    @precondition(lambda self: any(gateway.pending.depth for gateway in self.gateways))
    @rule(which=st.integers(0, 1), fault=st.sampled_from(FAULTS))
    def write_one_batch(self, which: int, fault: str) -> None:
        gateway = self.gateways[which]
        if not gateway.pending.depth:
            gateway = self.gateways[1 - which]
        if fault:
            setattr(gateway.database, fault, True)
        try:
            gateway.pending.write()
        except OperationalError as error:
            gateway.pending.recover(error)
        gateway.database.is_away = False

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

    @precondition(lambda self: self.files)
    @rule(dies=st.booleans())
    def settle_for_the_dead(self, dies: bool) -> None:
        """Who adopts a file may die before it has removed it."""
        files = list(self.files)
        self.adopt_files()
        if dies:
            self.files = files

    @precondition(lambda self: any(not each.gateway.is_alive for each in self.requests.values()))
    @rule()
    def sweep_up(self) -> None:
        self.adopt_files()
        self.sweep()
        names = [gateway.name for gateway in self.gateways]
        assert not Reservation.objects.using(self.using).exclude(gateway_id__in=names).exists()

    @rule(seconds=st.sampled_from([1, 600, 3600, 40_000]))
    def time_passes(self, seconds: int) -> None:
        self.now_unix_s += seconds

    @invariant()
    def only_what_runs_holds_anything(self) -> None:
        """Once its gateway has written all of its operations."""
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


def drive(using: str, max_examples: int, steps: int) -> None:
    machine = type("FleetOnThis", (Fleet,), {"using": using})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=steps,
            deadline=None,
            # Shrinking takes minutes, and is asked for by hand.
            phases=(Phase.reuse, Phase.generate),
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_any_interleaving(using: str) -> None:
    drive(using, max_examples=8, steps=40)


@pytest.mark.slow
@pytest.mark.limit_s(900)
def test_many_interleavings(using: str) -> None:
    drive(using, max_examples=60, steps=60)
