"""Limits per minute and at once, counted in Redis, so that they hold across all gateways.

One Lua script decides for a request's key and account and for every kind of limit, by Redis' clock:
everything is charged or nothing. A caller without limits costs no Redis. The leases of a dead
gateway expire within ``LEASE_S``, and its charges drain in a minute. Nothing is stored on disk:
restarting Redis resets the limits, and running requests get their leases back with the next
renewal.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import redis

from inference.protocol import keys
from inference.redis_link import LuaScript, RedisLink
from metering.errors import LimitsUnavailableError
from metering.limits import Counts, Subject, limit_state, refusal, refuse_impossible, subjects_of
from metering.principal import NO_LIMITS, LimitState, Principal, RateLimits

logger = logging.getLogger(__name__)

SCRIPT = LuaScript(Path(__file__).with_name("rate_limits.lua").read_text())
LEASE_S = 60.0
RENEW_INTERVAL_S = 15.0
RENEW_AGAIN_S = 1.0
MAX_RENEWED_AT_ONCE = 500
"""Leases in one run of the script, during which Redis does nothing else."""

_LEASE_MS = int(LEASE_S * 1000)


@dataclass(slots=True)
class _Held:
    """The charges of an admitted request. ``tokens`` are in the second ``slot``; ``extra`` were
    charged later, beyond the bound."""

    subjects: tuple[Subject, ...]
    slot: int
    tokens: int
    extra: int = 0


class RateLimiter:
    """One per gateway; belongs to one event loop. The caller closes ``link``."""

    def __init__(self, link: RedisLink, *, script: LuaScript = SCRIPT) -> None:
        self._link = link
        self._script = script
        self._calls: set[asyncio.Task[Any]] = set()
        self._held: dict[str, _Held] = {}

    async def acquire(
        self, principal: Principal, request_id: str, tokens: int, *, most: int | None = None
    ) -> LimitState:
        """Charges one request and ``tokens``, the most that it may use, and takes its lease. Where
        ``most`` is more, charges up to that: as many as leave half of the rest to others. The
        caller calls ``correct``, then ``release``. Raises ``RateLimitedError`` (then nothing is
        charged) or ``LimitsUnavailableError``."""
        if not (subjects := subjects_of(principal)):
            return NO_LIMITS
        refuse_impossible(subjects, tokens)
        reply = self._ask(subjects, request_id, tokens, max(tokens, most or 0))
        try:
            now_ms, charged, counts = await self._answer(reply, subjects, tokens)
        except asyncio.CancelledError:
            reply.add_done_callback(partial(self._undo, request_id, subjects))
            raise
        except LimitsUnavailableError:
            self._free_leases(request_id, subjects)  # the script may have run all the same
            raise
        self._held[request_id] = _Held(subjects, now_ms // 1000, charged)
        return limit_state(subjects, counts, now_ms=now_ms, tokens_charged=charged)

    async def extend(self, request_id: str, tokens: int) -> None:
        """Raises ``RateLimitedError`` (then they are not charged) or ``LimitsUnavailableError``."""
        held = self._held.get(request_id)
        if held is None or tokens <= 0:
            return
        subjects = tuple(
            replace(each, limits=RateLimits(tokens_per_minute=each.limits.tokens_per_minute))
            for each in held.subjects
            if each.limits.tokens_per_minute is not None
        )
        refuse_impossible(subjects, held.tokens + held.extra + tokens)
        reply = self._ask(subjects, request_id, tokens, tokens)
        _, charged, _ = await self._answer(reply, subjects, tokens)
        held.extra += charged

    async def _answer(
        self, reply: asyncio.Task[Any], subjects: Sequence[Subject], tokens: int
    ) -> tuple[int, int, list[Counts]]:
        """Returns Redis' time in ms, the tokens charged, and each subject's counts."""
        try:
            admitted, now_ms, charged, *numbers = await asyncio.shield(reply)
        except (redis.RedisError, OSError) as error:
            raise LimitsUnavailableError("Redis does not answer; try again shortly.") from error
        counts = [Counts(*numbers[index : index + 3]) for index in range(0, len(numbers), 3)]
        if not admitted:
            raise refusal(subjects, counts, tokens=tokens, now_ms=now_ms)
        return now_ms, charged, counts

    def _ask(
        self, subjects: Sequence[Subject], request_id: str, tokens: int, most: int
    ) -> asyncio.Task[Any]:
        return self._call(
            [key for each in subjects for key in (_counts_key(each), _open_key(each))],
            "acquire",
            request_id,
            tokens,
            most,
            _LEASE_MS,
            *("" if limit is None else limit for each in subjects for limit in each.limits.values),
        )

    def correct(self, request_id: str, tokens: int) -> None:
        """``tokens``: the usage so far, instead of the bound. May be called again later."""
        held = self._held.get(request_id)
        if held is None:
            return
        counted = [each for each in held.subjects if each.limits.tokens_per_minute is not None]
        counts_keys = [_counts_key(each) for each in counted]
        per_minute = [each.limits.tokens_per_minute or 0 for each in counted]
        difference = tokens - held.tokens - held.extra
        if not counted or not difference:
            return
        if difference > 0:
            self._call_soon(counts_keys, "take", difference, *per_minute)
            held.extra += difference
        elif returned := min(-difference, held.tokens):
            self._call_soon(counts_keys, "refund", held.slot, held.tokens, returned, *per_minute)
            held.tokens -= returned

    def release(self, request_id: str) -> None:
        if held := self._held.pop(request_id, None):
            self._free_leases(request_id, held.subjects)

    async def renew(self) -> None:
        """Raises ``LimitsUnavailableError``."""
        open_ids: defaultdict[str, list[str]] = defaultdict(list)
        for request_id, held in self._held.items():
            for key in _lease_keys(held.subjects):
                open_ids[key].append(request_id)
        replies = [
            self._call([key], "renew", _LEASE_MS, *ids[start : start + MAX_RENEWED_AT_ONCE])
            for key, ids in open_ids.items()
            for start in range(0, len(ids), MAX_RENEWED_AT_ONCE)
        ]
        try:
            await asyncio.gather(*replies)
        except (redis.RedisError, OSError) as error:
            raise LimitsUnavailableError("Redis does not answer") from error

    async def run_renewals(self) -> None:
        while True:
            try:
                await self.renew()
            except LimitsUnavailableError as error:
                logger.debug("leases were not renewed: %s", error)
                await asyncio.sleep(RENEW_AGAIN_S)
            else:
                await asyncio.sleep(RENEW_INTERVAL_S)

    async def flush(self) -> None:
        while self._calls:
            await asyncio.wait(self._calls)

    def _undo(
        self,
        request_id: str,
        subjects: tuple[Subject, ...],
        reply: asyncio.Task[Any],
    ) -> None:
        """Refunds the charge of a caller that left before the script's reply."""
        if reply.cancelled() or reply.exception():
            return
        admitted, now_ms, charged, *_ = reply.result()
        if admitted:
            self._held[request_id] = _Held(subjects, now_ms // 1000, charged)
            self.correct(request_id, 0)
            self.release(request_id)

    def _free_leases(self, request_id: str, subjects: Sequence[Subject]) -> None:
        if lease_keys := _lease_keys(subjects):
            self._call_soon(lease_keys, "release", request_id)

    def _call_soon(self, keys: Sequence[str], operation: str, *arguments: str | int) -> None:
        """Where Redis fails, debts drain and leases lapse."""
        self._call(keys, operation, *arguments).add_done_callback(_log_loss)

    def _call(self, keys: Sequence[str], *arguments: str | int) -> asyncio.Task[Any]:
        """Runs after all calls before it. The task fails with ``redis.RedisError`` or
        ``OSError``."""
        call = asyncio.create_task(self._link.run(self._script, keys=keys, args=arguments))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call


def _counts_key(subject: Subject) -> str:
    return keys.limit_counts_key(subject.kind, subject.name)


def _open_key(subject: Subject) -> str:
    return keys.limit_open_key(subject.kind, subject.name)


def _lease_keys(subjects: Sequence[Subject]) -> list[str]:
    return [_open_key(each) for each in subjects if each.limits.max_concurrent is not None]


def _log_loss(reply: asyncio.Task[Any]) -> None:
    if not reply.cancelled() and (error := reply.exception()):
        logger.info("a change of a limit's count was not delivered: %s", error)
