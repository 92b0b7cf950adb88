"""Any interleaving of two gateways' calls against a plain record of charges and their times."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from metering.errors import RateLimitedError
from metering.limits.rate_limiter import LEASE_S, RateLimiter
from metering.limits.state import LimitState, LimitStatus
from metering.principal import Principal, RateLimits
from tests.metering.limits_support import (
    CLOCKED_SCRIPT,
    START_MS,
    connect,
    link_to,
    set_clock,
)

PARTS = 60_000
SLOT_MS = 1000
LEASE_MS = int(LEASE_S * 1000)
GONE = -2
"""PTTL's answer for a missing key."""
LIMITS = st.builds(
    RateLimits,
    requests_per_minute=st.sampled_from([5, 30]),
    tokens_per_minute=st.sampled_from([70, 100, 997]),
    max_concurrent=st.sampled_from([3, 8]),
)


@dataclass
class Charge:
    at_ms: int
    tokens: int


@dataclass
class Running:
    gateway: int
    charges: list[Charge]
    """The bound, then the usage beyond it."""


@dataclass
class Account:
    """One subject's limits, and every charge against them in the order of time."""

    limits: RateLimits
    requests: list[Charge] = field(default_factory=list)
    tokens: list[Charge] = field(default_factory=list)
    leases: dict[str, int] = field(default_factory=dict)

    def tokens_debt(self, now_ms: int) -> int:
        return debt(self.tokens, self.limits.tokens_per_minute or 0, now_ms)

    def requests_debt(self, now_ms: int) -> int:
        return debt(self.requests, self.limits.requests_per_minute or 0, now_ms)

    def num_open(self, now_ms: int) -> int:
        return sum(lease_ms > now_ms for lease_ms in self.leases.values())

    def has_room(self, tokens: int, now_ms: int, *, slack: int) -> bool:
        limits = self.limits
        assert limits.requests_per_minute and limits.tokens_per_minute and limits.max_concurrent
        return (
            self.requests_debt(now_ms) + PARTS <= limits.requests_per_minute * PARTS
            and self.tokens_debt(now_ms) + slack * limits.tokens_per_minute + tokens * PARTS
            <= limits.tokens_per_minute * PARTS
            and self.num_open(now_ms) < limits.max_concurrent
        )


def debt(charges: list[Charge], per_minute: int, now_ms: int) -> int:
    """Returns the debt of a bucket that takes ``charges`` and drains ``per_minute`` parts a
    millisecond."""
    owed, at_ms = 0, 0
    for charge in charges:
        owed = max(0, owed - per_minute * (charge.at_ms - at_ms)) + charge.tokens * PARTS
        at_ms = charge.at_ms
    return max(0, owed - per_minute * (now_ms - at_ms))


class LimitsMachine(RuleBasedStateMachine):
    """``debt`` of what the requests have used so far, had it been known from the start, is what
    the script must never be under. It may be over it by one second's drain, since it keeps one
    sum a second."""

    url = ""

    @initialize(key=LIMITS, account=LIMITS)
    def start(self, key: RateLimits, account: RateLimits) -> None:
        self.runner = asyncio.Runner()
        self.client = connect(self.url)
        self.links = [link_to(self.url), link_to(self.url)]
        self.gateways = [RateLimiter(link, script=CLOCKED_SCRIPT) for link in self.links]
        self.now_ms = START_MS
        self.runner.run(self.client.flushall())
        self.tick(0)
        self.who = Principal(account="lab", key="hx-abc", key_limits=key, account_limits=account)
        self.accounts = [Account(key), Account(account)]
        self.running: dict[str, Running] = {}
        self.num_requests = 0

    def teardown(self) -> None:
        if not hasattr(self, "runner"):
            return
        for request_id in list(self.running):
            self.end(request_id)
        self.tick(3_600_000)
        self.check_all_is_drained()
        for connection in (*self.links, self.client):
            self.runner.run(connection.aclose())
        self.runner.close()

    def check_all_is_drained(self) -> None:
        state = self.runner.run(self.gateways[0].acquire(self.who, "last", 1))
        tokens = min(account.limits.tokens_per_minute or 0 for account in self.accounts)
        requests = min(account.limits.requests_per_minute or 0 for account in self.accounts)
        assert state.tokens is not None and state.requests is not None
        assert (state.tokens.remaining, state.requests.remaining) == (tokens - 1, requests - 1)

    @rule(elapsed_ms=st.one_of(st.integers(0, 2500), st.sampled_from([20_000, 40_000, 62_500])))
    def tick(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        self.runner.run(set_clock(self.client, self.now_ms))

    @rule(
        gateway=st.integers(0, 1),
        share=st.sampled_from([0, 0.1, 0.3, 0.5, 1]),
        most_share=st.sampled_from([0, 0, 0.2, 0.5, 10]),
    )
    def acquire(self, gateway: int, share: float, most_share: float) -> None:
        smallest = min(account.limits.tokens_per_minute or 0 for account in self.accounts)
        tokens, most = int(smallest * share), int(smallest * most_share)
        self.num_requests += 1
        request_id = f"r{self.num_requests}"
        may = all(each.has_room(tokens, self.now_ms, slack=0) for each in self.accounts)
        must = all(each.has_room(tokens, self.now_ms, slack=SLOT_MS) for each in self.accounts)
        try:
            state = self.runner.run(
                self.gateways[gateway].acquire(self.who, request_id, tokens, most=most)
            )
        except RateLimitedError as error:
            assert not must
            assert error.retry_after_s
            return
        assert may
        halves = [
            tokens
            + max(0, min(self.left(each, slack=slack) for each in self.accounts) - tokens) // 2
            for slack in (SLOT_MS, 0)
        ]
        most = max(tokens, most)
        assert min(most, halves[0]) <= state.tokens_charged <= min(most, halves[1])
        charge = Charge(self.now_ms, state.tokens_charged)
        for account in self.accounts:
            account.requests.append(Charge(self.now_ms, 1))
            account.tokens.append(charge)
            account.leases[request_id] = self.now_ms + LEASE_MS
        self.running[request_id] = Running(gateway, [charge])
        self.check(state)

    def check(self, state: LimitState) -> None:
        assert state.tokens is not None and state.requests is not None
        most = [self.left(account, slack=0) for account in self.accounts]
        least = [self.left(account, slack=SLOT_MS) for account in self.accounts]
        assert min(least) <= state.tokens.remaining <= min(most)
        exact = [
            LimitStatus(
                limit=limit,
                remaining=limit - -(-account.requests_debt(self.now_ms) // PARTS),
                reset_ms=-(-account.requests_debt(self.now_ms) // limit),
            )
            for account in self.accounts
            if (limit := account.limits.requests_per_minute)
        ]
        assert state.requests in exact
        assert state.requests.remaining == min(each.remaining for each in exact)

    def left(self, account: Account, *, slack: int) -> int:
        limit = account.limits.tokens_per_minute or 0
        owed = account.tokens_debt(self.now_ms) + slack * limit
        return max(0, (limit * PARTS - owed) // PARTS)

    @rule(chance=st.randoms(use_true_random=False), share=st.sampled_from([0.01, 0.2, 1]))
    def extend(self, chance: object, share: float) -> None:
        request_id = self.any_running(chance)
        if request_id is None:
            return
        running = self.running[request_id]
        tokens = int(share * min(each.limits.tokens_per_minute or 0 for each in self.accounts))
        may, must = (
            all(self.left(each, slack=slack) >= tokens or not tokens for each in self.accounts)
            for slack in (0, SLOT_MS)
        )
        total = tokens + sum(charge.tokens for charge in running.charges)
        fits = all(total <= (each.limits.tokens_per_minute or 0) for each in self.accounts)
        limiter = self.gateways[running.gateway]
        try:
            self.runner.run(limiter.extend(request_id, tokens))
        except RateLimitedError as error:
            assert not (must and fits)
            assert (error.retry_after_s is not None) or not fits
            return
        assert may and (fits or not tokens)
        if tokens:
            beyond = Charge(self.now_ms, tokens)
            running.charges.append(beyond)
            for account in self.accounts:
                account.tokens.append(beyond)

    @rule(chance=st.randoms(use_true_random=False), share=st.sampled_from([0, 0.1, 0.5, 0.9, 1.2]))
    def correct(self, chance: object, share: float) -> None:
        request_id = self.any_running(chance)
        if request_id is None:
            return
        running = self.running[request_id]
        bound = running.charges[0]
        total = sum(charge.tokens for charge in running.charges)
        wanted = int(total * share)
        self.runner.run(self.in_loop(self.gateways[running.gateway].correct, request_id, wanted))
        if wanted > total:
            beyond = Charge(self.now_ms, wanted - total)
            running.charges.append(beyond)
            for account in self.accounts:
                account.tokens.append(beyond)
        else:
            bound.tokens -= min(total - wanted, bound.tokens)

    @rule(chance=st.randoms(use_true_random=False))
    def release(self, chance: object) -> None:
        request_id = self.any_running(chance)
        if request_id is not None:
            self.end(request_id)

    def end(self, request_id: str) -> None:
        running = self.running.pop(request_id)
        self.runner.run(self.in_loop(self.gateways[running.gateway].release, request_id))
        for account in self.accounts:
            del account.leases[request_id]

    @rule(gateway=st.integers(0, 1))
    def renew(self, gateway: int) -> None:
        self.runner.run(self.gateways[gateway].renew())
        for request_id, running in self.running.items():
            if running.gateway == gateway:
                for account in self.accounts:
                    account.leases[request_id] = self.now_ms + LEASE_MS

    @rule()
    def forget_the_script(self) -> None:
        self.runner.run(self.client.script_flush())

    @invariant()
    def redis_holds_what_it_should(self) -> None:
        if not hasattr(self, "runner"):
            return
        for account, counts, lifetimes_ms in self.runner.run(self.in_redis()):
            assert all(lifetime_ms > 0 or lifetime_ms == GONE for lifetime_ms in lifetimes_ms)
            limit = account.limits.tokens_per_minute or 0
            owed, at_ms = (int(count or 0) for count in counts)
            owed = max(0, owed - limit * (self.now_ms - at_ms))
            exact = account.tokens_debt(self.now_ms)
            assert exact <= owed <= exact + limit * SLOT_MS

    async def in_redis(self) -> list[tuple[Account, list[bytes | None], list[int]]]:
        """Each account's debt and its moment, and how long its keys will live."""
        pipeline = self.client.pipeline(transaction=False)
        names = ("helexa:limit:key:hx-abc", "helexa:limit:account:lab")
        for name in names:
            pipeline.hmget(name, ["tokens", "tokens_at_ms"])
            pipeline.pttl(name)
            pipeline.pttl(f"{name}:open")
        found = await pipeline.execute()
        return [
            (account, found[3 * index], found[3 * index + 1 : 3 * index + 3])
            for index, account in enumerate(self.accounts)
        ]

    def any_running(self, chance: object) -> str | None:
        return chance.choice(sorted(self.running)) if self.running else None  # type: ignore[attr-defined]

    async def in_loop(self, change: object, *arguments: object) -> None:
        """Calls what sends without waiting, and waits until it was sent."""
        change(*arguments)  # type: ignore[operator]
        for gateway in self.gateways:
            await gateway.flush()


def test_any_interleaving(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LimitsMachine, "url", redis_url)
    run_state_machine_as_test(
        LimitsMachine, settings=settings(max_examples=20, stateful_step_count=40)
    )
