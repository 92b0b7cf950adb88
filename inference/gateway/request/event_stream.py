"""Queues of events between the readers and the consumers of requests.

    reader ──put──▶ RequestStream (bounded) ──next_events──▶ consumer
    liveness, deadline, submission ──fail──▶

An attempt of a request ends in its stream and nowhere else. The others derive from that:

    RequestStream   ends once: by an answer, by ``fail`` with the ``ApiError`` that ``next_events``
                    raises after the events before it, or by ``end``, when its owner leaves it
    UsageCounter    is given every event, and is settled by the neuron's terminal event; by
                    ``lose`` or ``settle_within`` where that does not come
    Call            reports the request's one outcome, when its client has been answered and the
                    counter of its last attempt is settled

Belongs to one event loop; must not know Redis or HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from inference.gateway.request.answer_check import AnswerCheck, AnswerFaultError
from inference.gateway.request.tokens import UsageCounter
from inference.protocol.events import (
    ANSWERS,
    Accepted,
    Cancelled,
    Event,
    Failed,
    Failure,
    Fragment,
    StageTimes,
    Tokenized,
    TokensCounted,
    Traced,
    decode_event,
)
from inference.protocol.keys import GATEWAY_ALIVE_EXPIRY_S
from inference.wire.errors import ApiError, RequestFailedError, ServiceUnavailableError

logger = logging.getLogger(__name__)

STANDSTILL_INTERVAL_S = 0.5
MAX_QUEUED_EVENTS = 16_384
MAX_QUEUED_BYTES = 128 * 1024 * 1024
MAX_FRAGMENTED_BYTES = 64 * 1024 * 1024
EVENTS_A_TAKE = 1024
BYTES_A_TAKE = 256 * 1024
"""As much as the reader delivers in a turn, so that a consumer whose client reads keeps up."""

FAILURES = (Failed, Cancelled)
REPORTS = (Traced, StageTimes)
FIRST_EVENTS = (Accepted, TokensCounted, Tokenized)


class RequestStream:
    """``epoch``: the neuron's instance, by the snapshot at dispatch, then by its events."""

    def __init__(
        self,
        *,
        request_id: str,
        neuron: str,
        epoch: str,
        model: str,
        first_token_timeout_s: float,
        abort: Callable[[], None],
        usage_counter: UsageCounter,
        check: AnswerCheck,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.request_id = request_id
        self.neuron = neuron
        self.epoch = epoch
        self.model = model
        self.started_s = loop.time()
        self.accepted = False
        self.ended = False
        self.usage_counter = usage_counter
        """Once settled, the neuron holds nothing of this request."""
        self.is_submitted = False
        self.num_misses = 0
        self.stood_still_s = 0.0
        self._submission: asyncio.Future[None] | None = None
        self._events: deque[tuple[Event, int]] = deque()
        self._num_queued_bytes = 0
        self._fragments = bytearray()
        self._error: ApiError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._abort = abort
        self._check = check
        self._deadline: asyncio.TimerHandle | None = loop.call_later(
            max(0.0, first_token_timeout_s), self._time_out
        )

    def follow(self, submission: asyncio.Future[None]) -> None:
        """An unsent frame is not sent any more once the stream has ended."""
        self._submission = submission
        submission.add_done_callback(self._submission_ended)

    def put(self, event: Event, num_bytes: int = 0) -> None:
        """``num_bytes``: the event's share of its entry. Raises ``AnswerFaultError`` for an
        impossible answer: then the stream has failed, and nothing of the event counts."""
        try:
            if isinstance(event, Fragment):
                self._put_fragment(event)
                return
            if self.usage_counter.settled_s is None:
                self._check.check(event, num_bytes)
                self.usage_counter.count(event)
        except AnswerFaultError:
            self.fail(neuron_fault(self.neuron))
            raise
        if self.ended or isinstance(event, REPORTS):
            return
        if isinstance(event, FAILURES):
            self.fail(_failed_by(event))
        elif not self.accepted and not isinstance(event, FIRST_EVENTS):
            self.fail(events_lost())
        elif self._is_full(num_bytes):
            self.fail(_client_too_slow())
            self._abort()
        else:
            self._take(event, num_bytes)

    def fail(self, error: ApiError) -> None:
        if self.ended:
            return
        if self.stood_still_s and error.code in LOST_CODES:
            error = stood_still(self.stood_still_s)
        self._error = error
        self.usage_counter.cut()
        self.end()
        self._wake()

    def lose(self, error: ApiError) -> None:
        """The neuron is gone or does not have the request, so no terminal event comes."""
        self.fail(error)
        self.usage_counter.settle_as_counted()

    def settle_within(self, timeout_s: float, on_settled: Callable[[], None]) -> None:
        """Call after ``end``. Without a terminal event in time, the tokens counted settle it."""
        counter = self.usage_counter
        timer = asyncio.get_running_loop().call_later(timeout_s, counter.settle_as_counted)
        counter.when_settled(timer.cancel)
        counter.when_settled(on_settled)

    def end(self) -> None:
        self.ended = True
        self._stop_deadline()
        if self._submission is not None:
            self._submission.cancel()

    async def next_events(self) -> list[Event]:
        """At least one event, and as many as may be encoded in one turn of the loop. Raises the
        ``ApiError`` it failed with, once."""
        if self._events:  # more than the last call could return
            await asyncio.sleep(0)
        while not self._events:
            if self._error is not None:
                raise self._take_error()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        events: list[Event] = []
        taken_bytes = 0
        while self._events and len(events) < EVENTS_A_TAKE and taken_bytes < BYTES_A_TAKE:
            event, num_bytes = self._events.popleft()
            events.append(event)
            taken_bytes += num_bytes
        self._num_queued_bytes -= taken_bytes
        return events

    def _take_error(self) -> ApiError:
        """Clears the error: its traceback's frames refer to the stream."""
        error, self._error = self._error, None
        assert error is not None
        return error

    def _is_full(self, num_bytes: int) -> bool:
        return (
            len(self._events) >= MAX_QUEUED_EVENTS
            or self._num_queued_bytes + num_bytes > MAX_QUEUED_BYTES
        )

    def _put_fragment(self, fragment: Fragment) -> None:
        if self.ended:
            return
        self._fragments += fragment.data
        if len(self._fragments) > min(MAX_FRAGMENTED_BYTES, self._check.bytes_left):
            self._fragments = bytearray()
            raise AnswerFaultError("an event of too many fragments")
        if not fragment.is_last:
            return
        data, self._fragments = bytes(self._fragments), bytearray()
        try:
            event = decode_event(data)
        except msgspec.DecodeError as error:
            raise AnswerFaultError("fragments of no event") from error
        if isinstance(event, Fragment) or event.request_id != self.request_id:
            raise AnswerFaultError("fragments of another request's event")
        self.put(event, len(data))

    def _take(self, event: Event, num_bytes: int) -> None:
        if isinstance(event, Accepted):
            self.accepted = True
        elif self._deadline is not None:
            self._stop_deadline()
        if isinstance(event, ANSWERS):
            self.end()
        self._events.append((event, num_bytes))
        self._num_queued_bytes += num_bytes
        if self._waiter is not None:
            self._wake()

    def _submission_ended(self, submission: asyncio.Future[None]) -> None:
        if submission.cancelled():
            return
        match submission.exception():
            case None:
                self.is_submitted = True
            case ApiError() as error:
                self.fail(error)
            case error:
                raise error

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _time_out(self) -> None:
        self.fail(
            ServiceUnavailableError(
                "deadline_exceeded", f"{self.model} gave no token within the time allowed."
            )
        )


class RequestStreams:
    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._by_id: dict[str, RequestStream] = {}
        self._clock = clock
        self._checked_s = clock()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[RequestStream]:
        return iter(list(self._by_id.values()))

    def add(self, stream: RequestStream) -> None:
        self._by_id[stream.request_id] = stream

    def get(self, request_id: str) -> RequestStream | None:
        return self._by_id.get(request_id)

    def remove(self, stream: RequestStream) -> None:
        self._by_id.pop(stream.request_id, None)

    def fail_where(self, affected: Callable[[RequestStream], bool], error: ApiError) -> None:
        for stream in self:
            if affected(stream):
                stream.fail(error)

    async def check_standstill(self) -> None:
        """A process that was stopped, swapped out or starved let its key lapse: neurons took it for
        dead and cancelled its requests. The error of these names the gateway."""
        before_s, self._checked_s = self._checked_s, self._clock()
        paused_s = self._checked_s - before_s
        if paused_s <= GATEWAY_ALIVE_EXPIRY_S:
            return
        logger.error("this gateway stood still for %.0f s", paused_s)
        for stream in self:
            stream.stood_still_s = paused_s


def neuron_lost(neuron: str) -> ServiceUnavailableError:
    return ServiceUnavailableError(
        "neuron_lost", f"The neuron {neuron} went away while it worked on this.", retry_after_s=5.0
    )


LOST_CODES = frozenset({"request_lost", "events_lost", "redis_unavailable"})


def stood_still(paused_s: float) -> ServiceUnavailableError:
    return ServiceUnavailableError(
        "request_lost",
        f"This gateway stood still for {paused_s:.0f} s, and lost the rest of the answer; try "
        "again.",
    )


def request_lost(neuron: str) -> ServiceUnavailableError:
    return ServiceUnavailableError(
        "request_lost", f"The neuron {neuron} does not know this request (any more); try again."
    )


def events_lost() -> ServiceUnavailableError:
    return ServiceUnavailableError("events_lost", "Part of the answer was lost on its way.")


def neuron_fault(neuron: str) -> ServiceUnavailableError:
    return ServiceUnavailableError(
        "neuron_fault", f"The neuron {neuron} answered what was not asked for; try again."
    )


def _client_too_slow() -> ServiceUnavailableError:
    return ServiceUnavailableError(
        "client_too_slow", "The answer was not read as fast as it was generated."
    )


def _failed_by(event: Failed | Cancelled) -> ApiError:
    if isinstance(event, Failed):
        return RequestFailedError(event.failure)
    return RequestFailedError(
        Failure(code="cancelled", message="The request was cancelled by the neuron.")
    )
