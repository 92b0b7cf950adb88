"""One request of a client, whatever its dialect, from its first header until its outcome.

    identified ─▶ permitted ─▶ submitted (a UsageCounter) ─▶ answered ─┐
                                    └──▶ settled ──────────────────────┴▶ RequestOutcome, one

A refusal is reported at once. A submitted request is reported when its client has been answered and
its usage counter is settled: before that its usage is unknown. The call ends nothing itself; see
``event_stream``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from inference.gateway.request.identify import end_user_of_headers, via_of
from inference.gateway.request.settle import NO_MODEL, NOTHING, RequestOutcome, UsageCounter
from inference.protocol.events import Usage
from inference.wire.errors import ApiError
from metering.ledger.entries import (
    CANCELLED,
    GATEWAY_LOST,
    TOKENS,
    Outcome,
    Settle,
    fields_of,
    outcome_of,
)
from metering.limits.state import NO_LIMITS
from metering.prices import FREE, NOT_METERED, DearestPrices, Metered
from metering.principal import Principal

if TYPE_CHECKING:
    from inference.gateway.request.token_bounds import TokenBounds
    from inference.gateway.tracing.spans import RequestSpans


class Call:
    __slots__ = (
        "_is_closed",
        "_not_let_in",
        "_record",
        "_started_s",
        "capture",
        "charged",
        "client",
        "discount_percent",
        "end_user",
        "endpoint",
        "error_cause",
        "error_message",
        "error_status",
        "is_billed",
        "is_reserved",
        "is_usage_estimated",
        "limit_state",
        "may_move",
        "metered",
        "model",
        "model_asked",
        "most_prices",
        "neuron",
        "outcome",
        "placed_model",
        "prices",
        "principal",
        "request_id",
        "spans",
        "status",
        "targets_tried",
        "usage_counter",
        "via",
        "was_cold",
        "yields",
    )

    def __init__(
        self,
        *,
        request_id: str,
        endpoint: str,
        client: str,
        record: Callable[[RequestOutcome], None],
        principal: Principal | None = None,
        spans: RequestSpans | None = None,
    ) -> None:
        self.request_id = request_id
        self.endpoint = endpoint
        self.client = client
        self.principal = principal
        self.model = NO_MODEL
        self.model_asked = ""
        self.end_user = ""
        self.via = ""
        self.capture: Capture | None = None
        self.spans = spans
        self.neuron = ""
        self.targets_tried: list[str] = []
        """The targets that it has left, each with its error's code."""
        self.may_move = False
        """Another target may still answer it."""
        self.placed_model = ""
        """The model that it is placed by, an adapter's base; empty before that."""
        self.prices = FREE
        """The prices of the target that serves it, or that it is sent to."""
        self.most_prices: DearestPrices | None = None
        """The prices of the targets that may still serve it; ``None``: ``prices`` alone."""
        self.metered = NOT_METERED
        """What it uses beside tokens: at most until it has ended, then what it used."""
        self.is_reserved = False
        self.is_billed = True
        self.is_usage_estimated = False
        """An upstream did not report the tokens."""
        self.yields = False
        """It comes after everybody else's in every queue."""
        self.discount_percent = 0
        self.was_cold = False
        self.usage_counter: UsageCounter | None = None
        """The counter of its last attempt; ``None``: it was never submitted."""
        self.outcome = CANCELLED
        self.error_message = ""
        self.error_cause = ""
        self.error_status = 0
        self.status = 0
        self.limit_state = NO_LIMITS
        self.charged: TokenBounds | None = None
        """What a limit was charged for: ``prompt_tokens``, and ``default_output_tokens`` for the
        answer. ``None``: no limit counts its tokens."""
        self._not_let_in = ("", "")
        """Account and key of a sender who is refused, and so is no principal."""
        self._started_s = time.monotonic()
        self._is_closed = False
        self._record = record

    @property
    def who(self) -> Principal:
        assert self.principal is not None, "a call that is not identified"
        return self.principal

    @property
    def served_by(self) -> str:
        """The neuron or upstream that the answer comes from; empty until that is certain."""
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
            self.capture = Capture(headers)

    def capture_request(self, body: bytes) -> None:
        if self.capture is not None:
            self.capture.ask(body)

    def capture_answer(self, part: bytes) -> None:
        if self.capture is not None:
            self.capture.send(part)

    def fail(self, error: ApiError) -> None:
        """It ends with that error. Keeps its words alone: its traceback's frames refer to the
        call."""
        self.outcome = error.code
        self.error_message = error.message
        self.error_cause = error.cause
        self.error_status = error.status
        self._not_let_in = (error.account, error.key)

    def hand_over(self) -> Call:
        self._is_closed = True
        call = Call(
            request_id=self.request_id,
            endpoint=self.endpoint,
            client=self.client,
            principal=self.principal,
            record=self._record,
            spans=self.spans,
        )
        call.end_user, call.via, call.capture = self.end_user, self.via, self.capture
        call._started_s = self._started_s
        return call

    def close(self) -> None:
        """The client has been answered, or has left: nothing is filled in any more. Only the first
        time counts."""
        if self._is_closed:
            return
        self._is_closed = True
        if self.usage_counter is None:
            self._finish()
        else:
            self.usage_counter.when_settled(self._finish)

    def outcome_if_lost(self) -> RequestOutcome:
        """How it ends if its gateway dies now, before any token has come."""
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
        self._record(
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
        account, key = (principal.account, principal.key) if principal else self._not_let_in
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


MAX_REQUEST_BYTES = 1024 * 1024
"""The longest text that is looked through. It is more than is stored: images, which are masked,
often come before the text."""
MAX_ANSWER_BYTES = 256 * 1024


class Capture:
    __slots__ = ("answer", "headers", "num_answer_bytes", "num_request_bytes", "request", "trace")

    def __init__(self, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self.headers: Sequence[tuple[bytes, bytes]] = tuple(headers)
        self.request = b""
        self.num_request_bytes = 0
        self.answer = bytearray()
        self.num_answer_bytes = 0
        self.trace = ""

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
