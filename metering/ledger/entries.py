"""The operations on the ledger and its reservations, as plain data.

    Reserve ─▶ Granted | QuotaExceededError      before a request is submitted
    Narrow                                       when its prompt has been counted
    Settle                                       when it has ended: exactly one ledger entry
    Release                                      when it was never submitted: no entry

The operations of one request are applied in the order in which they were queued. Amounts are
integers: tokens and micro-USD.

An ``Outcome`` is one of the four words that every page, metric and record uses:

    answered    the client got what it asked for
    cancelled   the client left first
    refused     the request was at fault, or there was no room for it: no engine failed
    failed      the server failed
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from metering.money import FREE, NOT_METERED, DearestPrices, Metered, Prices

FINISHED = "finished"
CANCELLED = "cancelled"
GATEWAY_LOST = "gateway_lost"
WHO_AND_WHAT = ("account", "key", "model", "neuron", "endpoint", "client")
TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")


class Outcome(StrEnum):
    ANSWERED = "answered"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    FAILED = "failed"


class Reserve(msgspec.Struct, frozen=True, kw_only=True):
    """Reserves on all of ``budgets``, or on none. ``prompt_tokens`` is a safe upper bound.
    ``output_tokens`` bounds all choices together; ``None``: the client set no limit, and the
    budgets grant up to ``default_output_tokens``, in equal parts to ``num_choices``."""

    request_id: str
    gateway_id: str
    account: str
    key: str
    budgets: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int | None
    default_output_tokens: int
    num_choices: int = 1
    prices: Prices | DearestPrices = FREE
    metered: Metered = NOT_METERED
    now_unix_s: float


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    output_tokens: int


class Narrow(msgspec.Struct, frozen=True, kw_only=True):
    request_id: str
    budgets: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    prices: Prices = FREE


class RecordFields(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    """The status of the HTTP response; 0: none was sent, or its gateway died."""
    kind: Outcome
    error_message: str = ""
    model_asked: str = ""
    end_user: str = ""
    queue_ms: int | None = None
    is_usage_estimated: bool = False
    targets_tried: tuple[str, ...] = ()


class Settle(msgspec.Struct, frozen=True, kw_only=True):
    """The one ledger entry of a request; a second one of the same id charges nothing.

    The gateway's ``RequestOutcome`` carries it; the ledger's columns, the log line, the metrics and
    the spool read it by the names of ``WHO_AND_WHAT`` and ``TOKENS``.
    """

    request_id: str
    account: str
    key: str
    budgets: tuple[int, ...]
    model: str
    neuron: str
    endpoint: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    prices: Prices = FREE
    metered: Metered = NOT_METERED
    ended_unix_s: float
    duration_ms: int
    time_to_first_token_ms: int | None
    outcome: str
    """``finished``, ``cancelled``, or the code of the failure."""
    client: str
    """Its family, by the User-Agent: one of a fixed set of words, never the header's text."""
    is_failure: bool = False
    record: RecordFields | None = None
    """Written with the entry; ``None``: the request has no record, or one of its own."""

    @property
    def who_and_what(self) -> dict[str, str]:
        return fields_of(self, WHO_AND_WHAT)

    @property
    def tokens(self) -> dict[str, int]:
        return fields_of(self, TOKENS)

    @property
    def cost_micro_usd(self) -> int:
        tokens_micro_usd = self.prices.cost_micro_usd(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=min(self.cached_tokens, self.prompt_tokens),
            completion_tokens=self.completion_tokens,
        )
        return tokens_micro_usd + self.metered.micro_usd


class Release(msgspec.Struct, frozen=True, kw_only=True):
    request_id: str
    budgets: tuple[int, ...]


Operation = Reserve | Narrow | Settle | Release


def fields_of(record: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


FIRST_ERROR = 400
UNAVAILABLE = 503
SERVER_ERRORS = frozenset({500, 502, UNAVAILABLE, 504})
BUSY = frozenset({"queue_full", "queue_timeout"})
BROKEN_STORES = frozenset({"database_unavailable", "redis_unavailable", "storage_unavailable"})


ERRORS = frozenset({Outcome.REFUSED, Outcome.FAILED})


def outcome_of(*, code: str, error_status: int, is_placed: bool) -> Outcome:
    """``code``: ``finished``, ``cancelled``, or the error's. ``error_status``: the error's HTTP
    status, also within a stream; 0: none. ``is_placed``: a neuron had been found."""
    if code == FINISHED:
        return Outcome.ANSWERED
    if error_status < FIRST_ERROR:
        return Outcome.CANCELLED
    is_full = code in BUSY or not (is_placed or code in BROKEN_STORES)
    is_full &= error_status == UNAVAILABLE
    return Outcome.FAILED if error_status in SERVER_ERRORS and not is_full else Outcome.REFUSED
