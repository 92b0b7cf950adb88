"""Every request this neuron has not ended yet, and the rule that each ends exactly once.

    admit ─▶ WAITING ─begin─▶ STARTING ─started─▶ RUNNING ─▶ ENDING ─▶ (gone, one terminal event)
                │                 │                  │   a sequence was cut off: the others too,
                └── cancel:       └── cancel:        │   and what they used is counted
                    ends here         remembered,    └──────────────▶ (gone)
                                      sent once the engine has it

The call that removes a request from the table emits its terminal event, so that happens once. Any
thread may call; nothing blocks. The stages of a traced request are reported before its end:

    arrives ─prepare─▶ handed over ─queue─▶ first step ─prefill─▶ first token ─decode─▶ ends
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from inference.logs import phases
from inference.neuron.errors import INTERNAL_ERROR
from inference.protocol.engine import (
    SequenceCancelled,
    SequenceFailed,
    SequencesEmbedded,
    SequenceStep,
)
from inference.protocol.events import (
    TERMINAL_EVENTS,
    Cancelled,
    Embedded,
    Event,
    Failed,
    Failure,
    Finished,
    StageTimes,
    Traced,
    Usage,
)
from inference.protocol.generation import GenerationRequest, Submit

if TYPE_CHECKING:
    from inference.neuron.replicas.engine_process import EngineProcess
    from inference.neuron.text.answers import EmbeddingAnswer, TextAnswer

    Answer = TextAnswer | EmbeddingAnswer

log = logging.getLogger(__name__)

SequenceOutput = SequenceStep | SequencesEmbedded | SequenceFailed | SequenceCancelled


def sequence_id(request_id: str, index: int) -> str:
    return f"{request_id}/{index}"


class AddressedEvent(NamedTuple):
    gateway_id: str
    event: Event


@dataclass(slots=True)
class LiveRequest:
    submit: Submit
    arrived_s: float
    answer: Answer | None = None
    engine: EngineProcess | None = None
    trace: Callable[[], Traced] | None = None
    has_started: bool = False
    cancel_asked: bool = False
    is_ending: bool = False
    """No more events are sent; the request ends with its last sequence."""
    failure: Failure | None = None
    """``None``: it was cancelled."""
    is_orphan: bool = False
    """Its gateway is dead or has lost events: no more are sent."""
    handed_over_s: float | None = None
    first_token_s: float | None = None
    prefill_ms: float | None = None
    """The engine's own measurement; the rest of the time to the first token is waiting."""

    @property
    def request_id(self) -> str:
        return self.submit.request_id

    def addressed(self, event: Event) -> AddressedEvent:
        return AddressedEvent(self.submit.gateway_id, event)

    def last_events(self, end: Event, now_s: float) -> list[AddressedEvent]:
        reported: list[Event] = [] if self.trace is None else [self.trace()]
        if self.submit.traceparent:
            reported.append(self._stage_times(now_s))
        return [self.addressed(one) for one in (*reported, end)]

    def open_sequence_ids(self) -> list[str]:
        if self.answer is None:
            return []
        answer = self.answer
        indices = range(answer.num_sequences)
        return [sequence_id(self.request_id, i) for i in indices if not answer.has_finished(i)]

    def cut_off(self, failure: Failure | None = None) -> Failed | Cancelled:
        """An earlier failure takes precedence."""
        usage = None if self.answer is None else self.answer.usage()
        if (failure := self.failure or failure) is None:
            return Cancelled(request_id=self.request_id, usage=usage)
        return Failed(request_id=self.request_id, failure=failure, usage=usage)

    def _stage_times(self, now_s: float) -> StageTimes:
        handed_over_s = now_s if self.handed_over_s is None else self.handed_over_s
        until_s = now_s if self.first_token_s is None else self.first_token_s
        waited_ms = 1000 * (until_s - handed_over_s)
        queue_ms = prefill_ms = decode_ms = None
        if self.prefill_ms is not None:
            prefill_ms = min(self.prefill_ms, waited_ms)
            queue_ms = waited_ms - prefill_ms
            decode_ms = None if self.first_token_s is None else 1000 * (now_s - until_s)
        elif self.is_ending and isinstance(self.submit.request, GenerationRequest):
            queue_ms = waited_ms  # its engine cut it off before its first step
        return StageTimes(
            request_id=self.request_id,
            total_ms=1000 * (now_s - self.arrived_s),
            prepare_ms=1000 * (handed_over_s - self.arrived_s),
            queue_ms=queue_ms,
            prefill_ms=prefill_ms,
            decode_ms=decode_ms,
        )


@dataclass(slots=True)
class Applied:
    events: list[AddressedEvent] = field(default_factory=list)
    ended_early: list[str] = field(default_factory=list)
    """The engine must still cancel these sequences."""


class RequestTable:
    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._live: dict[str, LiveRequest] = {}

    def admit(self, submit: Submit) -> bool:
        with self._lock:
            if submit.request_id in self._live:
                return False
            self._live[submit.request_id] = LiveRequest(submit, self._clock())
            return True

    def is_live(self, request_id: str) -> bool:
        with self._lock:
            return request_id in self._live

    def has_work_for(self, model: str) -> bool:
        with self._lock:
            return any(live.submit.model == model for live in self._live.values())

    def begin(
        self,
        request_id: str,
        answer: Answer,
        engine: EngineProcess,
        trace: Callable[[], Traced] | None = None,
    ) -> bool:
        """Call before submitting to the engine. ``False``: the request has ended."""
        with self._lock:
            live = self._live.get(request_id)
            if live is None:
                return False
            live.answer, live.engine, live.trace = answer, engine, trace
            live.handed_over_s = self._clock()
            return True

    def started(self, request_id: str) -> bool:
        """Call after submitting to the engine. ``True``: the engine must cancel the request."""
        with self._lock:
            live = self._live.get(request_id)
            if live is None:
                return True
            live.has_started = True
            return live.cancel_asked

    def cancel(self, request_id: str) -> list[AddressedEvent]:
        with self._lock:
            live = self._live.get(request_id)
            if live is None:
                return []
            if live.engine is None:
                return self._end(live, live.cut_off())
        self._ask_to_cancel(live)
        return []

    def fail(self, request_id: str, failure: Failure) -> list[AddressedEvent]:
        with self._lock:
            live = self._live.get(request_id)
            return [] if live is None else self._end(live, live.cut_off(failure))

    def end(self, request_id: str, event: Event) -> list[AddressedEvent]:
        """Empty when the request has ended already."""
        with self._lock:
            live = self._live.get(request_id)
            return [] if live is None else self._end(live, event)

    def fail_engine(self, engine: EngineProcess, failure: Failure) -> list[AddressedEvent]:
        return self._fail_where(lambda live: live.engine is engine, failure)

    def submits_of(self, engine: EngineProcess) -> list[Submit]:
        with self._lock:
            return [live.submit for live in self._live.values() if live.engine is engine]

    def fail_all(self, failure: Failure) -> list[AddressedEvent]:
        return self._fail_where(lambda live: True, failure)

    def apply(self, outputs: Iterable[SequenceOutput]) -> Applied:
        applied = Applied()
        with self._lock:
            for output in outputs:
                request_id, _, index = output.sequence_id.rpartition("/")
                live = self._live.get(request_id)
                if live is not None:
                    self._apply_contained(live, int(index), output, applied)
        return applied

    def forget(self, request_ids: Iterable[str]) -> None:
        """For requests whose gateway has lost events."""
        wanted = frozenset(request_ids)
        self._orphan(lambda live: live.request_id in wanted)

    def forget_gateway(self, gateway_id: str) -> int:
        """Returns the number of cancelled requests."""
        return self._orphan(lambda live: live.submit.gateway_id == gateway_id)

    def gateway_ids(self) -> set[str]:
        return set(self.ids_by_gateway())

    def ids_by_gateway(self) -> dict[str, list[str]]:
        ids: defaultdict[str, list[str]] = defaultdict(list)
        with self._lock:
            for request_id, live in self._live.items():
                if not live.is_orphan:
                    ids[live.submit.gateway_id].append(request_id)
        return dict(ids)

    def _apply_contained(
        self, live: LiveRequest, index: int, output: SequenceOutput, applied: Applied
    ) -> None:
        """An error in an answer's text, a panic in Rust too, ends its request and no other."""
        try:
            self._apply_one(live, index, output, applied)
        except BaseException:
            log.exception("request %s: its answer broke", live.request_id)
            if live.request_id in self._live:
                applied.ended_early += live.open_sequence_ids()
                failure = live.failure or INTERNAL_ERROR
                applied.events += self._end(
                    live, Failed(request_id=live.request_id, failure=failure)
                )

    def _apply_one(
        self, live: LiveRequest, index: int, output: SequenceOutput, applied: Applied
    ) -> None:
        answer = live.answer
        assert answer is not None, "an engine spoke of a request it was not given"
        if answer.has_finished(index):
            return  # it ended early, and the engine had not received the cancel yet
        match output:
            case SequenceStep() | SequencesEmbedded():
                self._feed(live, answer, index, output, applied)
            case SequenceFailed() | SequenceCancelled():
                answer.cut(index, output.used)
                if live.prefill_ms is None:
                    live.prefill_ms = output.used.prefill_ms
                if not live.is_ending:
                    live.is_ending = True
                    if isinstance(output, SequenceFailed):
                        live.failure = Failure(code=output.code, message=output.message)
                    applied.ended_early += live.open_sequence_ids()
        if live.is_ending and not live.open_sequence_ids():
            applied.events += self._end(live, live.cut_off())

    def _feed(
        self,
        live: LiveRequest,
        answer: Answer,
        index: int,
        result: SequenceStep | SequencesEmbedded,
        applied: Applied,
    ) -> None:
        events = answer.feed(index, result)
        if live.first_token_s is None and answer.has_begun:
            live.first_token_s = self._clock()
        if live.prefill_ms is None and isinstance(result, SequenceStep):
            live.prefill_ms = result.prefill_ms
        is_engines_end = isinstance(result, SequencesEmbedded) or result.finish_reason is not None
        if answer.has_finished(index) and not is_engines_end:
            applied.ended_early.append(result.sequence_id)
        if live.is_ending:
            return  # it is counted and not sent
        is_end = bool(events) and isinstance(events[-1], TERMINAL_EVENTS)
        deltas = events[:-1] if is_end else events
        if not live.is_orphan:
            applied.events += map(live.addressed, deltas)
        if is_end:
            applied.events += self._end(live, events[-1])

    def _end(self, live: LiveRequest, event: Event) -> list[AddressedEvent]:
        """The caller holds the lock."""
        del self._live[live.request_id]
        now_s = self._clock()
        _log_end(live, event, now_s)
        return [] if live.is_orphan else live.last_events(event, now_s)

    def _fail_where(
        self, is_hit: Callable[[LiveRequest], bool], failure: Failure
    ) -> list[AddressedEvent]:
        with self._lock:
            hits = [live for live in self._live.values() if is_hit(live)]
            return [event for live in hits for event in self._end(live, live.cut_off(failure))]

    def _orphan(self, is_hit: Callable[[LiveRequest], bool]) -> int:
        with self._lock:
            hits = [live for live in self._live.values() if is_hit(live) and not live.is_orphan]
            for live in hits:
                live.is_orphan = True
                if live.engine is None:
                    self._end(live, live.cut_off())
        for live in hits:
            self._ask_to_cancel(live)
        return len(hits)

    def _ask_to_cancel(self, live: LiveRequest) -> None:
        """A cancel must not overtake its submit."""
        with self._lock:
            live.cancel_asked = True
            has_started = live.has_started
        if has_started and live.engine is not None:
            for open_id in live.open_sequence_ids():
                live.engine.cancel(open_id)


def _log_end(live: LiveRequest, end: Event, now_s: float) -> None:
    """Logs nothing of the prompt or the answer."""
    outcome = "finished"
    if isinstance(end, Failed | Cancelled):
        outcome = end.failure.code if isinstance(end, Failed) else "cancelled"
    usage = end.usage if isinstance(end, Failed | Cancelled | Finished | Embedded) else None
    usage = usage or Usage(prompt_tokens=0, completion_tokens=0)
    timing = end.timing if isinstance(end, Finished) else None
    first_token_s = now_s if live.first_token_s is None else live.first_token_s
    log.info(
        "%s model=%s %s prompt=%d cached=%d completion=%d first_token_ms=%.0f ms=%.0f%s",
        live.request_id,
        live.submit.model,
        outcome,
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.completion_tokens,
        1000 * (first_token_s - live.arrived_s),
        1000 * (now_s - live.arrived_s),
        "" if timing is None else phases(timing, usage.completion_tokens),
    )
