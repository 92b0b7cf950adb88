"""One request of a client, whatever its dialect, from its first header until its outcome is told.

    identified ─▶ permitted ─▶ submitted (a Tally) ─▶ answered ─┐
                                    └──▶ settled ───────────────┴▶ RequestOutcome, exactly one

A refusal is told at once. What was submitted is told when its client has been answered and the
neuron has said its last word: until then nobody knows what it used.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from inference.gateway.request.tally import NOTHING, Tally
from inference.protocol.events import Usage
from inference.wire.errors import ApiError
from metering.limits.state import NO_LIMITS
from metering.prices import FREE, Prices
from metering.principal import Principal

NO_MODEL = "-"
FINISHED = "finished"
CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class TokenCharge:
    """What a limit of tokens per minute was charged for a request: the most that it may use."""

    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcome:
    """How one request ended. ``model`` is a catalogue name, never a client's text."""

    request_id: str
    account: str
    key: str
    budgets: tuple[int, ...]
    endpoint: str
    client: str
    model: str
    neuron: str
    is_billed: bool
    """It was submitted, and what it asks for has a price: it gets a ledger entry."""
    is_reserved: bool
    outcome: str
    """``finished``, ``cancelled``, or the code of its refusal or failure."""
    status: int
    """The status of the HTTP response; 0 where there was none."""
    usage: Usage
    prices: Prices
    duration_s: float
    time_to_first_token_s: float | None
    ended_unix_s: float
    was_cold: bool
    """Its model was loaded for it."""
    error_status: int = 0
    """Of the error that it ended with; ``status`` is 200 where its stream had begun."""
    error_message: str = ""
    is_self_test: bool = False
    """``serve`` has asked it: it is logged, and nothing else."""


class Call:
    """Filled in as it becomes known."""

    __slots__ = (
        "_is_closed",
        "_started_s",
        "_tell",
        "client",
        "discount_percent",
        "endpoint",
        "error_message",
        "error_status",
        "is_billed",
        "is_reserved",
        "limit_state",
        "model",
        "neuron",
        "outcome",
        "placed_model",
        "prices",
        "principal",
        "request_id",
        "status",
        "tally",
        "token_charge",
        "was_cold",
        "yields",
    )

    def __init__(
        self,
        *,
        request_id: str,
        endpoint: str,
        client: str,
        tell: Callable[[RequestOutcome], None],
        principal: Principal | None = None,
    ) -> None:
        self.request_id = request_id
        self.endpoint = endpoint
        self.client = client
        self.principal = principal
        self.model = NO_MODEL
        self.neuron = ""
        self.placed_model = ""
        """The model that it is placed by, an adapter's base; empty before that."""
        self.prices = FREE
        self.is_reserved = False
        self.is_billed = True
        self.yields = False
        """It comes after everybody else's in every queue."""
        self.discount_percent = 0
        """What it costs less."""
        self.was_cold = False
        self.tally: Tally | None = None
        self.outcome = CANCELLED
        self.error_message = ""
        self.error_status = 0
        self.status = 0
        self.limit_state = NO_LIMITS
        """Told with the response: what is left of the caller's limits."""
        self.token_charge: TokenCharge | None = None
        """``None``: no limit counts its tokens."""
        self._started_s = time.monotonic()
        self._is_closed = False
        self._tell = tell

    @property
    def who(self) -> Principal:
        assert self.principal is not None, "a call that is not identified"
        return self.principal

    def fail(self, error: ApiError) -> None:
        """It ends with that error. Keeps its words alone: its traceback's frames refer to the
        call."""
        self.outcome = error.code
        self.error_message = error.message
        self.error_status = error.status

    def hand_over(self) -> Call:
        """Another call goes on with what this one has begun, and tells how it ended."""
        self._is_closed = True
        call = Call(
            request_id=self.request_id,
            endpoint=self.endpoint,
            client=self.client,
            principal=self.principal,
            tell=self._tell,
        )
        call._started_s = self._started_s
        return call

    def close(self) -> None:
        """The client has been answered, or has left: nothing is filled in any more. Only the first
        time counts."""
        if self._is_closed:
            return
        self._is_closed = True
        if self.tally is None:
            self._finish()
        else:
            self.tally.when_settled(self._finish)

    def _finish(self) -> None:
        tally, principal = self.tally, self.principal
        first_s = tally.first_token_s if tally is not None else None
        self._tell(
            RequestOutcome(
                request_id=self.request_id,
                account=principal.account if principal else "",
                key=principal.key if principal else "",
                budgets=principal.budgets if principal else (),
                endpoint=self.endpoint,
                client=self.client,
                model=self.model,
                neuron=self.neuron,
                is_billed=self.is_billed and tally is not None,
                is_reserved=self.is_reserved,
                outcome=self.outcome,
                status=self.status,
                usage=tally.usage if tally is not None else NOTHING,
                prices=self.prices,
                duration_s=time.monotonic() - self._started_s,
                time_to_first_token_s=None if first_s is None else first_s - self._started_s,
                ended_unix_s=time.time(),
                was_cold=self.was_cold,
                error_status=self.error_status,
                error_message=self.error_message,
                is_self_test=principal is not None and principal.is_self_test,
            )
        )
