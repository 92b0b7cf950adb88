"""Reserves the most that one request may use: on its limits, on its caps, and at its neuron, which
refuses a longer prompt before computing.

    reserve, near the expected length ─▶ the neuron counts ─┬▶ accepted: narrowed, learned
                ▲                                           └▶ longer than was reserved
                └──────────── extend, by the count, once ◀───┘

``TokenBudget`` decides how much: the charge of ``admission.Limiting`` for its limits per minute,
else the usual tokens of texts of that size. ``Accounting`` reserves on the caps:

    reserve ─▶ Granted ─▶ narrow, when the prompt is counted ─▶ settle, by the outcome
      │           └▶ release, where it never came to a neuron
      └ only others' reservations are in the way ─▶ line of that budget, for a few seconds
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from inference.gateway.request.outcome import Call, RequestOutcome
from inference.gateway.request.tokens import DEFAULT_OUTPUT_TOKENS, TokenBounds, UsageCounter
from inference.protocol.events import Usage
from inference.protocol.refusals import Cause
from inference.wire.errors import (
    ApiError,
    BudgetReservedError,
    InsufficientQuotaError,
    RateLimitExceededError,
    RequestFailedError,
    ServiceUnavailableError,
)
from metering.errors import LedgerUnavailableError, QuotaExceededError
from metering.ledger.entries import Granted, Narrow, Release, Reserve
from metering.request_records import with_record

if TYPE_CHECKING:
    from inference.gateway.request.attempt import Asked
    from metering.ledger.writer import LedgerWriter

OVER_BUDGET = "insufficient_quota"
MAX_TEMPLATE_TOKENS = 65_536
"""The most tokens that a template may add to a prompt where nothing is reserved."""
WAIT_S = 10.0
POLL_INTERVAL_S = 0.25
"""How often the first of a line polls for what other gateways settle."""


class TokenBudget:
    def __init__(self, asked: Asked) -> None:
        gateway = asked.gateway
        self._accounting, self._limits = gateway.accounting, gateway.limits
        self._call, self._model, self._floor = asked.call, asked.entry.name, asked.floor
        self._on_caps_tokens = 0
        self._sure: TokenBounds | None = None
        self._reserved: TokenBounds | None = None
        self._granted: Granted | None = None
        self._counted_tokens: int | None = None
        self._is_extended = False

    @property
    def is_reserved(self) -> bool:
        return self._reserved is not None

    async def reserve(self, sure: TokenBounds, *, is_enforced: bool = True) -> None:
        """``is_enforced``: a neuron refuses a longer prompt than is reserved; otherwise the sure
        bound is reserved. Raises ``ApiError``."""
        charged, prompt_tokens = self._call.charged, sure.prompt_tokens
        default = sure.default_output_tokens
        if charged is not None:
            default = min(default, charged.default_output_tokens)
            prompt_tokens = charged.prompt_tokens if is_enforced else prompt_tokens
        elif is_enforced and self._call.who.budgets:
            prompt_tokens = sure.near(self._limits.ratios, self._model)
        reserved = replace(sure, prompt_tokens=prompt_tokens, default_output_tokens=default)
        await self._reserve_on_caps(reserved)
        self._sure, self._reserved = sure, reserved

    async def extends(self, error: ApiError) -> bool:
        """``True``: a prompt refused as too long is now reserved. Raises ``ApiError``."""
        sure, reserved = self._sure, self._reserved
        if sure is None or reserved is None or self._is_extended or error.code != OVER_BUDGET:
            return False
        if not isinstance(error, RequestFailedError) or self.max_prompt_tokens is None:
            return False
        counted = error.failure.num_prompt_tokens
        prompt_tokens = sure.prompt_tokens if counted is None else counted
        if not reserved.prompt_tokens < prompt_tokens <= sure.prompt_tokens:
            return False
        self._is_extended = True
        if self._call.charged is not None:
            await self._limits.extend(self._call, prompt_tokens)
        reserved = replace(reserved, prompt_tokens=prompt_tokens)
        await self._reserve_on_caps(reserved)
        self._reserved = reserved
        return True

    async def _reserve_on_caps(self, bounds: TokenBounds) -> None:
        if self._call.is_billed:
            most = bounds if self._floor is None else bounds.or_more(self._floor)
            self._granted = await self._accounting.reserve(self._call, most)
            self._on_caps_tokens = most.prompt_tokens

    def accepted(self, prompt_tokens: int) -> None:
        sure = self._sure
        assert sure is not None, "a request that reserved nothing"
        self._limits.ratios.observe(self._model, sure.text_bound, prompt_tokens - sure.exact_tokens)
        self._counted_tokens = prompt_tokens
        if not self._call.may_move:
            self.keep()

    def keep(self) -> None:
        """No other target will serve the request: releases what was reserved for them."""
        reserved, granted, counted = self._reserved, self._granted, self._counted_tokens
        if reserved is None or granted is None or counted is None:
            return
        if counted < self._on_caps_tokens or self._floor is not None:
            self._accounting.narrow(
                self._call,
                prompt_tokens=min(counted, self._on_caps_tokens),
                output_tokens=self._output_tokens(reserved),
            )

    @property
    def max_prompt_tokens(self) -> int | None:
        """Its neuron refuses longer prompts; ``None``: nothing is reserved."""
        if self._reserved is None or (self._granted is None and self._call.charged is None):
            return None
        return self._reserved.prompt_tokens

    @property
    def cap_output_tokens(self) -> int | None:
        reserved = self._reserved
        if reserved is None or reserved.output_tokens is not None:
            return None
        return self._output_tokens(reserved) // reserved.num_choices

    def _output_tokens(self, reserved: TokenBounds) -> int:
        named = reserved.output_tokens
        most = reserved.default_output_tokens if named is None else named
        return most if self._granted is None else min(most, self._granted.output_tokens)

    def most_usage(self, *, num_prompts: int, context_tokens: int | None) -> Usage:
        """Where nothing is reserved, the neuron refuses no prompt that its template makes longer,
        by up to ``MAX_TEMPLATE_TOKENS``. A token that stops a choice counts, and may follow the
        last requested one."""
        reserved = self._reserved
        assert reserved is not None, "a request that reserved nothing"
        prompt_tokens = self.max_prompt_tokens
        if prompt_tokens is None:
            in_context = num_prompts * (context_tokens or DEFAULT_OUTPUT_TOKENS)
            rendered = reserved.prompt_tokens + num_prompts * MAX_TEMPLATE_TOKENS
            prompt_tokens = max(reserved.prompt_tokens, min(in_context, rendered))
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=self._output_tokens(reserved) + reserved.num_choices,
        )


class Accounting:
    def __init__(self, ledger: LedgerWriter, gateway_id: str, *, max_waiting: int) -> None:
        self._ledger = ledger
        self._gateway_id = gateway_id
        self.queue = ReservationQueue(ledger, max_waiting=max_waiting)

    @property
    def problem(self) -> str | None:
        return self._ledger.spool_problem

    async def reserve(self, call: Call, bounds: TokenBounds) -> Granted | None:
        """Replaces an earlier reservation. ``None``: no cap applies. Raises ``ApiError``."""
        if self._ledger.is_full:
            raise _ledger_unavailable()
        principal = call.who
        if not principal.budgets:
            return None
        try:
            granted = await self.queue.reserve(
                Reserve(
                    request_id=call.request_id,
                    gateway_id=self._gateway_id,
                    account=principal.account,
                    key=principal.key,
                    budgets=principal.budgets,
                    prompt_tokens=bounds.prompt_tokens,
                    output_tokens=bounds.output_tokens,
                    default_output_tokens=bounds.default_output_tokens,
                    num_choices=bounds.num_choices,
                    prices=call.most_prices or call.prices,
                    metered=call.metered,
                    now_unix_s=time.time(),
                )
            )
        except QuotaExceededError as error:
            raise _refusal(error) from error
        except LedgerUnavailableError as error:
            raise _ledger_unavailable() from error
        call.is_reserved = True
        return granted

    def release(self, call: Call) -> None:
        if call.is_reserved:
            call.is_reserved = False
            self._ledger.release(Release(request_id=call.request_id, budgets=call.who.budgets))
            self.queue.freed(call.who.budgets)

    def narrow(self, call: Call, *, prompt_tokens: int, output_tokens: int) -> None:
        if call.is_reserved:
            self._ledger.narrow(
                Narrow(
                    request_id=call.request_id,
                    budgets=call.who.budgets,
                    prompt_tokens=prompt_tokens,
                    output_tokens=output_tokens,
                    prices=call.prices,
                )
            )
            self.queue.freed(call.who.budgets)

    def submitted(self, call: Call, counter: UsageCounter) -> None:
        """A call is billed for its last attempt, also where this process dies first."""
        call.usage_counter = counter
        if call.is_billed:
            self._ledger.begin(with_record(call.outcome_if_lost()), counter.tokens)

    def settle(self, outcome: RequestOutcome) -> None:
        settle = outcome.settle
        if outcome.is_billed:
            self._ledger.settle(with_record(outcome))
        elif settle.budgets:
            self._ledger.release(Release(request_id=settle.request_id, budgets=settle.budgets))
        if settle.budgets:
            self.queue.freed(settle.budgets)


def _refusal(error: QuotaExceededError) -> ApiError:
    if error.is_reserved:
        return BudgetReservedError(str(error), retry_after_s=error.retry_after_s)
    cause = Cause.KEY_BUDGET if error.owner == "key" else Cause.ACCOUNT_BUDGET
    if error.retry_after_s is None:
        return InsufficientQuotaError(str(error), cause=cause)
    return RateLimitExceededError(
        str(error), kind="tokens", cause=cause, retry_after_s=math.ceil(error.retry_after_s)
    )


def _ledger_unavailable() -> ServiceUnavailableError:
    return ServiceUnavailableError(
        "database_unavailable", "The ledger cannot be written; try again shortly."
    )


@dataclass(slots=True)
class _Line:
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the first: one request polls the ledger, however many wait."""
    may_try: asyncio.Event = field(default_factory=asyncio.Event)
    num_waiting: int = 0


class ReservationQueue:
    """Requests that wait for others' reservations to settle before their budget refuses them: a
    reservation is an upper bound, and most of it is free again in seconds. Belongs to one event
    loop."""

    def __init__(self, ledger: LedgerWriter, *, max_waiting: int, wait_s: float = WAIT_S) -> None:
        self.num_waiting = 0
        self._ledger = ledger
        self._max_waiting = max_waiting
        self._wait_s = wait_s
        self._lines: dict[int, _Line] = {}

    async def reserve(self, reserve: Reserve) -> Granted:
        """Raises ``QuotaExceededError`` and ``LedgerUnavailableError``."""
        budget = next((budget for budget in reserve.budgets if budget in self._lines), None)
        if budget is None or self.num_waiting >= self._max_waiting:
            try:
                return await self._ledger.reserve(reserve)
            except QuotaExceededError as error:
                if not error.is_reserved or self.num_waiting >= self._max_waiting:
                    raise
                budget = error.budget
        line = self._lines.setdefault(budget, _Line())
        line.num_waiting += 1
        self.num_waiting += 1
        try:
            return await self._wait(reserve, line)
        finally:
            self.num_waiting -= 1
            line.num_waiting -= 1
            if not line.num_waiting:
                del self._lines[budget]

    def freed(self, budgets: Iterable[int]) -> None:
        """Call it once the ledger has the release."""
        for budget in budgets if self._lines else ():
            if line := self._lines.get(budget):
                line.may_try.set()

    async def _wait(self, reserve: Reserve, line: _Line) -> Granted:
        until_s = asyncio.get_running_loop().time() + self._wait_s
        try:
            async with asyncio.timeout_at(until_s):
                await line.turn.acquire()
        except TimeoutError:
            return await self._try(reserve)
        try:
            return await self._try_until(until_s, reserve, line)
        finally:
            line.may_try.set()
            line.turn.release()

    async def _try_until(self, until_s: float, reserve: Reserve, line: _Line) -> Granted:
        loop = asyncio.get_running_loop()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(until_s, loop.time() + POLL_INTERVAL_S)):
                    await line.may_try.wait()
            line.may_try.clear()
            try:
                return await self._try(reserve)
            except QuotaExceededError as error:
                if not error.is_reserved or loop.time() >= until_s:
                    raise

    async def _try(self, reserve: Reserve) -> Granted:
        return await self._ledger.reserve(replace(reserve, now_unix_s=time.time()))
