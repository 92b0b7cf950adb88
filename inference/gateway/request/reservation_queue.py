"""Requests that wait for reservations of others to settle before their budget refuses them.

    reserve ─▶ granted
       └─ only reserved out ─▶ line of that budget ── the first tries again when something settles
                                                   └▶ granted, or refused when its time is up

A reservation is the most that a request may use, and most of it is free again in seconds. Lines
are first come, first served: one request of a line asks the ledger, however many wait. Other
gateways' settlements are found by polling. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from metering.errors import LedgerUnavailableError, QuotaExceededError
from metering.ledger.entries import Granted, Reserve

WAIT_S = 10.0
"""How long a request waits at most."""
POLL_INTERVAL_S = 0.25
"""How often the first of a line asks the ledger while this gateway settles nothing."""


class _Line(deque[asyncio.Event]):
    """One event for each request that waits, set when it should try. ``failure``: the ledger does
    not answer, which ends the waiting of all."""

    failure: LedgerUnavailableError | None = None


class Reserver(Protocol):
    async def reserve(self, reserve: Reserve) -> Granted: ...


class ReservationQueue:
    def __init__(self, ledger: Reserver, *, max_waiting: int, wait_s: float = WAIT_S) -> None:
        self.num_waiting = 0
        self._ledger = ledger
        self._max_waiting = max_waiting
        self._wait_s = wait_s
        self._lines: dict[int, _Line] = {}
        """The line of each budget."""

    async def reserve(self, reserve: Reserve) -> Granted:
        """Raises ``QuotaExceededError`` and ``LedgerUnavailableError``."""
        budget = self._waited_for(reserve.budgets)
        if budget is None or self.num_waiting >= self._max_waiting:
            try:
                return await self._ledger.reserve(reserve)
            except QuotaExceededError as error:
                if not error.is_reserved or self.num_waiting >= self._max_waiting:
                    raise
                budget = error.budget
        return await self._wait(reserve, budget)

    def freed(self, budgets: Iterable[int]) -> None:
        """Something was released on these budgets, and the ledger knows of it."""
        if not self._lines:
            return
        for budget in budgets:
            if line := self._lines.get(budget):
                line[0].set()

    def _waited_for(self, budgets: Iterable[int]) -> int | None:
        if not self._lines:
            return None
        return next((budget for budget in budgets if budget in self._lines), None)

    async def _wait(self, reserve: Reserve, budget: int) -> Granted:
        line = self._lines.setdefault(budget, _Line())
        turn = asyncio.Event()
        line.append(turn)
        self.num_waiting += 1
        try:
            return await self._try_in_turn(reserve, line, turn)
        finally:
            self.num_waiting -= 1
            line.remove(turn)
            if line:
                line[0].set()
            else:
                del self._lines[budget]

    async def _try_in_turn(self, reserve: Reserve, line: _Line, turn: asyncio.Event) -> Granted:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._wait_s
        while True:
            left_s = until_s - loop.time()
            is_first = line[0] is turn
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, POLL_INTERVAL_S) if is_first else left_s):
                    await turn.wait()
            turn.clear()
            if line.failure is not None:
                raise line.failure
            is_last_try = loop.time() >= until_s
            if not (line[0] is turn or is_last_try):
                continue
            try:
                return await self._ledger.reserve(replace(reserve, now_unix_s=time.time()))
            except QuotaExceededError as error:
                if not error.is_reserved or is_last_try:
                    raise
            except LedgerUnavailableError as error:
                line.failure = error
                for other in line:
                    other.set()
                raise
