"""The money side of one gateway's requests: held before they run, charged when they have ended.

    reserve ─▶ Granted ─▶ narrow, when the prompt is counted ─▶ settle, by the outcome
      │           └▶ release, where it never came to a neuron
      └ waits a little where others' reservations are in the way (``reservation_queue``)

Whose caps, at which prices and how much are decided elsewhere; here they become operations on the
ledger, and its refusals become errors for the client.
"""

from __future__ import annotations

import math
import time
from typing import Protocol

from inference.gateway.request.call import Call
from inference.gateway.request.reservation_queue import ReservationQueue
from inference.gateway.request.settle import RequestOutcome
from inference.gateway.request.token_bounds import TokenBounds
from inference.wire.errors import (
    ApiError,
    BudgetReservedError,
    InsufficientQuotaError,
    RateLimitExceededError,
    ServiceUnavailableError,
)
from metering.errors import LedgerUnavailableError, QuotaExceededError
from metering.ledger.entries import Granted, Narrow, Release, Reserve, Settle


class Ledger(Protocol):
    """``metering.ledger.writer`` in front of the database. All but ``reserve`` return at once and
    are never lost."""

    def start(self) -> None:
        """Call on the event loop that will serve."""
        ...

    async def stop(self, timeout_s: float) -> None:
        """Writes the queue first."""
        ...

    async def reserve(self, reserve: Reserve) -> Granted:
        """Raises ``QuotaExceededError`` or ``LedgerUnavailableError``."""
        ...

    def narrow(self, narrow: Narrow) -> None: ...
    def settle(self, settle: Settle) -> None: ...
    def release(self, release: Release) -> None: ...
    @property
    def is_full(self) -> bool: ...
    @property
    def depth(self) -> int:
        """How many operations are not written yet; from any thread, as is ``age_s``."""
        ...

    @property
    def age_s(self) -> float:
        """How long the oldest of them has waited."""
        ...

    @property
    def num_spooled(self) -> int:
        """How many bills wait for the database in the data directory; from any thread, as is
        ``spool_problem``."""
        ...

    @property
    def spool_problem(self) -> str | None:
        """Why bills that wait for the database are not in the data directory either."""
        ...


class Accounting:
    def __init__(self, ledger: Ledger, gateway_id: str, *, max_waiting: int) -> None:
        """``max_waiting``: requests that may wait for reservations to settle at once."""
        self._ledger = ledger
        self._gateway_id = gateway_id
        self.queue = ReservationQueue(ledger, max_waiting=max_waiting)

    @property
    def problem(self) -> str | None:
        """What may cost bills, in words."""
        return self._ledger.spool_problem

    async def reserve(self, call: Call, bounds: TokenBounds) -> Granted | None:
        """Reserves what the request may use at most, in place of what it has reserved before;
        ``None`` where no cap applies. Raises ``ApiError``."""
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
                    prices=call.prices,
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
        """It was never submitted, so nothing of it will be charged."""
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

    def settle(self, outcome: RequestOutcome) -> None:
        """The one ledger entry of a request that was submitted."""
        settle = outcome.settle
        if outcome.is_billed:
            self._ledger.settle(settle)
        elif settle.budgets:
            self._ledger.release(Release(request_id=settle.request_id, budgets=settle.budgets))
        if settle.budgets:
            self.queue.freed(settle.budgets)


def _refusal(error: QuotaExceededError) -> ApiError:
    if error.is_reserved:
        return BudgetReservedError(str(error), retry_after_s=error.retry_after_s)
    if error.retry_after_s is None:
        return InsufficientQuotaError(str(error))
    return RateLimitExceededError(
        str(error), kind="tokens", retry_after_s=math.ceil(error.retry_after_s)
    )


def _ledger_unavailable() -> ServiceUnavailableError:
    return ServiceUnavailableError(
        "database_unavailable", "The ledger cannot be written; try again shortly."
    )
