"""One request of a client, whatever its dialect, from its first header until its outcome.

    identified ─▶ permitted ─▶ submitted (a UsageCounter) ─▶ answered ─┐
                                    └──▶ settled ──────────────────────┴▶ RequestOutcome, one
                                                                           │
                              log, metrics, ledger, limits, record, spans ◀┘

A refusal is reported at once; a submitted request when its client has been answered and its usage
counter is settled. The call ends nothing itself; see ``event_stream``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from inference.gateway.request.identify import end_user_of_headers, via_of
from inference.gateway.request.tokens import NOTHING, TokenBounds, UsageCounter
from inference.protocol.events import Usage
from inference.wire.errors import ApiError
from metering.ledger.entries import (
    CANCELLED,
    GATEWAY_LOST,
    TOKENS,
    UNAVAILABLE,
    Outcome,
    Settle,
    fields_of,
    outcome_of,
)
from metering.money import FREE, NOT_METERED, DearestPrices, Metered, Prices
from metering.principal import NO_LIMITS, LimitState, Principal

if TYPE_CHECKING:
    from inference.gateway.tracing import RequestSpans
    from metering.ledger.writer import LedgerWriter

logger = logging.getLogger("helexa.requests")

PROBES = frozenset({"/health", "/ping"})
"""Polled every few seconds by monitors: their lines would bury the others."""

MAX_CAUSE_CHARACTERS = 300
NO_MODEL = "-"
MAX_REQUEST_BYTES = 1024 * 1024
"""Images, which are masked before storing, often come before the text."""
MAX_ANSWER_BYTES = 256 * 1024


class RequestOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """``settle.model`` is a catalogue name, never a client's text."""

    settle: Settle
    """For log and metrics; for the ledger where ``is_billed``."""
    is_billed: bool
    kind: Outcome
    status: int
    was_cold: bool
    error_status: int = 0
    """``status`` is 200 where its stream had begun."""
    error_message: str = ""
    error_cause: str = ""
    is_self_test: bool = False
    """Made by ``serve``: logged, and nothing else."""
    model_asked: str = ""
    end_user: str = ""
    captured: Capture | None = None
    is_usage_estimated: bool = False
    targets_tried: tuple[str, ...] = ()
    spans: RequestSpans | None = None
    queue_ms: int | None = None
    """From the first header to the start of its work; ``None``: it never started."""

    @property
    def duration_s(self) -> float:
        return self.settle.duration_ms / 1000

    @property
    def time_to_first_token_s(self) -> float | None:
        first_ms = self.settle.time_to_first_token_ms
        return None if first_ms is None else first_ms / 1000


@dataclass(slots=True)
class Capture:
    headers: Sequence[tuple[bytes, bytes]] = ()
    request: bytes = b""
    num_request_bytes: int = 0
    answer: bytearray = field(default_factory=bytearray)
    num_answer_bytes: int = 0
    trace: str = ""

    def ask(self, body: bytes) -> None:
        self.num_request_bytes = len(body)
        self.request = body[:MAX_REQUEST_BYTES]

    def send(self, part: bytes) -> None:
        self.num_answer_bytes += len(part)
        if len(self.answer) < MAX_ANSWER_BYTES:
            self.answer += part[: MAX_ANSWER_BYTES - len(self.answer)]

    def drop(self) -> None:
        self.request, self.answer, self.trace = b"", bytearray(), ""

    @property
    def num_bytes(self) -> int:
        return len(self.request) + len(self.answer) + len(self.trace)


@dataclass(slots=True, eq=False, kw_only=True)
class Call:
    request_id: str
    endpoint: str
    client: str
    record: Callable[[RequestOutcome], None]
    principal: Principal | None = None
    spans: RequestSpans | None = None
    model: str = NO_MODEL
    model_asked: str = ""
    end_user: str = ""
    via: str = ""
    capture: Capture | None = None
    neuron: str = ""
    targets_tried: list[str] = field(default_factory=list)
    may_move: bool = False
    placed_model: str = ""
    """An adapter's base; empty before it is placed."""
    prices: Prices = FREE
    most_prices: DearestPrices | None = None
    """The prices of the targets that may still serve it; ``None``: ``prices``."""
    metered: Metered = NOT_METERED
    is_reserved: bool = False
    is_billed: bool = True
    is_usage_estimated: bool = False
    yields: bool = False
    """Every queue serves this request after all others."""
    discount_percent: int = 0
    was_cold: bool = False
    usage_counter: UsageCounter | None = None
    """The last attempt's; ``None``: the request was never submitted."""
    outcome: str = CANCELLED
    error_message: str = ""
    error_cause: str = ""
    error_status: int = 0
    status: int = 0
    limit_state: LimitState = NO_LIMITS
    charged: TokenBounds | None = None
    """``prompt_tokens``, and ``default_output_tokens`` for the answer, as charged to the limit.
    ``None``: no limit counts its tokens."""
    _refused_sender: tuple[str, str] = ("", "")
    _started_s: float = field(default_factory=time.monotonic)
    _is_closed: bool = False

    @property
    def who(self) -> Principal:
        assert self.principal is not None, "a call that is not identified"
        return self.principal

    @property
    def served_by(self) -> str:
        """Empty until it is certain."""
        counter = self.usage_counter
        has_begun = counter is not None and counter.begun_s is not None
        return self.neuron if has_begun and not self.may_move else ""

    def identify(self, principal: Principal, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self.principal = principal
        self.end_user = end_user_of_headers(headers, principal)
        self.via = via_of(headers)
        if principal.is_self_test:
            self.spans = None
        if principal.is_captured(time.time()):
            self.capture = Capture(tuple(headers))

    def capture_request(self, body: bytes) -> None:
        if self.capture is not None:
            self.capture.ask(body)

    def capture_answer(self, part: bytes) -> None:
        if self.capture is not None:
            self.capture.send(part)

    def fail(self, error: ApiError) -> None:
        """Keeps only the error's words: its traceback's frames refer to the call."""
        self.outcome = error.code
        self.error_message = error.message
        self.error_cause = error.cause
        self.error_status = error.status
        self._refused_sender = (error.account, error.key)

    def hand_over(self) -> Call:
        handed = copy(self)
        self._is_closed = True
        return handed

    def close(self) -> None:
        """Only the first call counts."""
        if self._is_closed:
            return
        self._is_closed = True
        if self.usage_counter is None:
            self._finish()
        else:
            self.usage_counter.when_settled(self._finish)

    def outcome_if_lost(self) -> RequestOutcome:
        return self._ended(
            NOTHING,
            code=GATEWAY_LOST,
            kind=Outcome.FAILED,
            message="Its gateway died; the tokens are those that had come until then.",
            metered=NOT_METERED,
        )

    def _finish(self) -> None:
        counter = self.usage_counter
        if self.capture is not None and counter is not None:
            self.capture.trace = counter.trace
        kind = outcome_of(
            code=self.outcome,
            error_status=self.error_status or self.status,
            is_placed=bool(self.neuron),
        )
        self.record(
            self._ended(
                NOTHING if counter is None else counter.usage,
                code=self.outcome,
                kind=kind,
                message=self.error_message,
                metered=self.metered,
            )
        )

    def _ended(
        self, usage: Usage, *, code: str, kind: Outcome, message: str, metered: Metered
    ) -> RequestOutcome:
        counter, principal = self.usage_counter, self.principal
        account, key = (principal.account, principal.key) if principal else self._refused_sender
        first_s = None if counter is None else counter.first_token_s
        begun_s = None if counter is None else counter.begun_s
        settle = Settle(
            request_id=self.request_id,
            account=account,
            key=key,
            budgets=principal.budgets if principal and self.is_reserved else (),
            model=self.model,
            neuron=self.neuron,
            endpoint=self.endpoint,
            client=self.client,
            outcome=code,
            prices=self.prices,
            metered=metered,
            ended_unix_s=time.time(),
            duration_ms=_milliseconds(time.monotonic() - self._started_s),
            time_to_first_token_ms=self._since_start_ms(first_s),
            is_failure=kind is Outcome.FAILED,
            **fields_of(usage, TOKENS),
        )
        return RequestOutcome(
            settle=settle,
            kind=kind,
            is_billed=self.is_billed and counter is not None,
            status=self.status,
            was_cold=self.was_cold,
            error_status=self.error_status,
            error_message=message,
            error_cause=self.error_cause,
            is_self_test=principal is not None and principal.is_self_test,
            model_asked=self.model_asked,
            end_user=self.end_user,
            queue_ms=self._since_start_ms(begun_s),
            captured=self.capture,
            spans=self.spans,
            is_usage_estimated=self.is_usage_estimated,
            targets_tried=tuple(self.targets_tried),
        )

    def _since_start_ms(self, moment_s: float | None) -> int | None:
        return None if moment_s is None else _milliseconds(moment_s - self._started_s)


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


Listener = Callable[[RequestOutcome], None]


class Outcomes:
    """``listeners`` are called in order; one that fails does not keep the others from it."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = (log, *listeners)

    def record(self, outcome: RequestOutcome) -> None:
        for listener in (log,) if outcome.is_self_test else self._listeners:
            try:
                listener(outcome)
            except Exception:
                logger.exception("the end of request %s is not recorded", outcome.settle.request_id)


def recorded_by(ledger: LedgerWriter) -> Listener:
    def record(outcome: RequestOutcome) -> None:
        if outcome.settle.endpoint not in PROBES:
            ledger.record(outcome)

    return record


def end_spans(outcome: RequestOutcome) -> None:
    if outcome.spans is not None:
        outcome.spans.end(outcome)


def log(outcome: RequestOutcome) -> None:
    """Holds no client's text, and only server failures include their cause."""
    settle, is_ours = outcome.settle, outcome.kind is Outcome.FAILED
    logger.log(
        _level(outcome, is_ours),
        "%s %s %s/%s model=%s neuron=%s client=%s status=%d %s prompt=%d cached=%d completion=%d "
        "ms=%d%s%s",
        settle.request_id,
        settle.endpoint,
        settle.account or "-",
        settle.key or "-",
        settle.model,
        settle.neuron or "-",
        settle.client or "-",
        outcome.status,
        settle.outcome,
        settle.prompt_tokens,
        settle.cached_tokens,
        settle.completion_tokens,
        settle.duration_ms,
        f"{_metered(outcome)}{' estimated' if outcome.is_usage_estimated else ''}{_tried(outcome)}",
        f" cause={outcome.error_message:.{MAX_CAUSE_CHARACTERS}}" if is_ours else "",
        extra={"request": _fields(outcome, is_ours)},
    )


def _tried(outcome: RequestOutcome) -> str:
    tried = ",".join(outcome.targets_tried).replace(" ", "")
    return f" tried={tried}" if tried else ""


def _metered(outcome: RequestOutcome) -> str:
    metered = outcome.settle.metered
    return f" {metered.unit}s={metered.num_units}" if metered.unit else ""


def _level(outcome: RequestOutcome, is_ours: bool) -> int:
    if is_ours:
        is_temporary = outcome.error_status == UNAVAILABLE
        return logging.WARNING if is_temporary else logging.ERROR
    return logging.DEBUG if outcome.settle.endpoint in PROBES else logging.INFO


def _fields(outcome: RequestOutcome, is_ours: bool) -> dict[str, object]:
    settle, metered = outcome.settle, outcome.settle.metered
    return {
        "id": settle.request_id,
        **settle.who_and_what,
        "status": outcome.status,
        "outcome": settle.outcome,
        **({"cause": outcome.error_message} if is_ours else {}),
        **settle.tokens,
        **({f"{metered.unit}s": metered.num_units} if metered.unit else {}),
        **({"is_usage_estimated": True} if outcome.is_usage_estimated else {}),
        **({"targets_tried": outcome.targets_tried} if outcome.targets_tried else {}),
        **({"trace_id": outcome.spans.trace_id} if outcome.spans is not None else {}),
        "duration_s": outcome.duration_s,
        "time_to_first_token_s": outcome.time_to_first_token_s,
    }
