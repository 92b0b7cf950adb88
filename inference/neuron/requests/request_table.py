"""Every request this neuron has not ended yet, and the rule that each ends exactly once.

    admit ─▶ WAITING ─begin─▶ STARTING ─started─▶ RUNNING ─▶ ENDING ─▶ (gone, one terminal event)
                │                 │                  │   a sequence was cut off: the others too,
                └── cancel:       └── cancel:        │   and what they used is counted
                    ends here         remembered,    └──────────────▶ (gone)
                                      sent once the engine has it

A request runs as one sequence for each choice, ``sequence_id(request_id, index)`` to the engine.
The call that removes a request from the table emits its terminal event, so that happens once. Knows
no Redis: events are returned with the gateway they are for. Any thread may call; nothing blocks.

A request that has ended is one line of the neuron's log, by the id that its gateway logs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from inference.logs.formatters import phases
from inference.neuron.errors import internal_error
from inference.neuron.requests.stage_clock import Result, SequenceOutput, StageClock
from inference.protocol.engine import (
    SequenceCancelled,
    SequenceFailed,
    SequencesEmbedded,
    SequenceStep,
    SequenceTiming,
    SequenceUsage,
)
from inference.protocol.events import (
    TERMINAL_EVENTS,
    Cancelled,
    Embedded,
    Event,
    Failed,
    Failure,
    Finished,
    Traced,
    Usage,
)
from inference.protocol.generation import Submit

log = logging.getLogger(__name__)


def sequence_id(request_id: str, index: int) -> str:
    return f"{request_id}/{index}"


class Answer(Protocol):
    """Converts the engine's outputs of a request's sequences to its events."""

    @property
    def num_sequences(self) -> int: ...
    @property
    def has_begun(self) -> bool:
        """Whether a first token, or a vector, has come."""
        ...

    def has_finished(self, index: int) -> bool: ...

    def feed(self, index: int, result: Result) -> list[Event]: ...

    def cut(self, index: int, used: SequenceUsage) -> None: ...

    def usage(self) -> Usage | None:
        """Usage computed so far, as far as known; ``None``: none."""
        ...


class Engine(Protocol):
    def cancel(self, sequence_id: str) -> None:
        """Frees what the sequence holds; unknown ids and dead engines are ignored."""
        ...


class Trace(Protocol):
    def event(self) -> Traced: ...


class AddressedEvent(NamedTuple):
    gateway_id: str
    event: Event


@dataclass(slots=True)
class LiveRequest:
    submit: Submit
    started_unix_s: float
    answer: Answer | None = None
    engine: Engine | None = None
    trace: Trace | None = None
    """Reported before its end; ``None``: the request is not captured."""
    stages: StageClock | None = None
    """Reported before its end; ``None``: the request is not traced."""
    has_started: bool = False
    cancel_asked: bool = False
    is_ending: bool = False
    """A sequence was cut off: no more events are sent, and the request ends with its last
    sequence."""
    failure: Failure | None = None
    """Why it is ending; ``None``: it was cancelled."""
    is_orphan: bool = False
    """Whether its gateway is dead or has lost events: no more events are sent."""
    first_token_unix_s: float | None = None

    @property
    def request_id(self) -> str:
        return self.submit.request_id

    def addressed(self, event: Event) -> AddressedEvent:
        return AddressedEvent(self.submit.gateway_id, event)

    def last_events(self, end: Event) -> list[AddressedEvent]:
        """The terminal event ``end``, after the reports that come before it."""
        if self.trace is None and self.stages is None:
            return [self.addressed(end)]
        reported: list[Event] = [
            part.event() for part in (self.trace, self.stages) if part is not None
        ]
        return [self.addressed(one) for one in (*reported, end)]

    def open_sequence_ids(self) -> list[str]:
        if self.answer is None:
            return []
        answer = self.answer
        indices = range(answer.num_sequences)
        return [sequence_id(self.request_id, i) for i in indices if not answer.has_finished(i)]

    def failed(self, failure: Failure) -> Failed:
        """Its terminal failure: an earlier one goes before ``failure``."""
        return Failed(
            request_id=self.request_id, failure=self.failure or failure, usage=self._usage()
        )

    def cancelled(self) -> Cancelled:
        return Cancelled(request_id=self.request_id, usage=self._usage())

    def _usage(self) -> Usage | None:
        return None if self.answer is None else self.answer.usage()


@dataclass(slots=True)
class Applied:
    events: list[AddressedEvent] = field(default_factory=list)
    ended_early: list[str] = field(default_factory=list)
    """Sequences whose choice or request ended early: the engine must still cancel them."""


class RequestTable:
    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        """``clock`` gives unix seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._live: dict[str, LiveRequest] = {}

    def admit(self, submit: Submit) -> bool:
        with self._lock:
            if submit.request_id in self._live:
                return False
            stages = StageClock(submit) if submit.traceparent else None
            self._live[submit.request_id] = LiveRequest(submit, self._clock(), stages=stages)
            return True

    def is_live(self, request_id: str) -> bool:
        """``False``: it has ended."""
        with self._lock:
            return request_id in self._live

    def has_work_for(self, model: str) -> bool:
        with self._lock:
            return any(live.submit.model == model for live in self._live.values())

    def begin(
        self, request_id: str, answer: Answer, engine: Engine, trace: Trace | None = None
    ) -> bool:
        """Call it before submitting to the engine. False when the request ended while it was
        prepared."""
        with self._lock:
            live = self._live.get(request_id)
            if live is None:
                return False
            live.answer, live.engine, live.trace = answer, engine, trace
            if live.stages is not None:
                live.stages.hand_over()
            return True

    def started(self, request_id: str) -> bool:
        """Call it after submitting to the engine. True: the request was cancelled meanwhile, and
        the engine must cancel it."""
        with self._lock:
            live = self._live.get(request_id)
            if live is None:
                return True
            live.has_started = True
            return live.cancel_asked

    def cancel(self, request_id: str) -> list[AddressedEvent]:
        """Ends a request that no engine has; otherwise asks its engine, whose word ends it."""
        with self._lock:
            live = self._live.get(request_id)
            if live is None:
                return []
            if live.engine is None:
                return self._end(live, live.cancelled())
        self._ask_to_cancel(live)
        return []

    def fail(self, request_id: str, failure: Failure) -> list[AddressedEvent]:
        with self._lock:
            live = self._live.get(request_id)
            return [] if live is None else self._end(live, live.failed(failure))

    def end(self, request_id: str, event: Event) -> list[AddressedEvent]:
        """``event`` is terminal and needs no engine. Empty when the request has ended already."""
        with self._lock:
            live = self._live.get(request_id)
            return [] if live is None else self._end(live, event)

    def fail_engine(self, engine: Engine, failure: Failure) -> list[AddressedEvent]:
        return self._fail_where(lambda live: live.engine is engine, failure)

    def submits_of(self, engine: Engine) -> list[Submit]:
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
        """Give up requests whose gateway has lost events, and free what they hold."""
        wanted = frozenset(request_ids)
        self._orphan(lambda live: live.request_id in wanted)

    def forget_gateway(self, gateway_id: str) -> int:
        """Cancels its requests. Returns their number."""
        return self._orphan(lambda live: live.submit.gateway_id == gateway_id)

    def gateway_ids(self) -> set[str]:
        with self._lock:
            return {live.submit.gateway_id for live in self._live.values() if not live.is_orphan}

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
        """Contains errors of an answer's text, panics in Rust too: they end its request and no
        other."""
        try:
            self._apply_one(live, index, output, applied)
        except BaseException:
            log.exception("request %s: its answer broke", live.request_id)
            if live.request_id in self._live:
                applied.ended_early += live.open_sequence_ids()
                failed = Failed(
                    request_id=live.request_id, failure=live.failure or internal_error()
                )
                applied.events += self._end(live, failed)

    def _apply_one(
        self, live: LiveRequest, index: int, output: SequenceOutput, applied: Applied
    ) -> None:
        answer = live.answer
        assert answer is not None, "an engine spoke of a request it was not given"
        if live.stages is not None:
            live.stages.see(output)
        if answer.has_finished(index):
            return  # it ended early, and the engine had not received the cancel yet
        match output:
            case SequenceStep() | SequencesEmbedded():
                self._feed(live, answer, index, output, applied)
            case SequenceFailed(code=code, message=message, used=used):
                answer.cut(index, used)
                if not live.is_ending:
                    live.failure = Failure(code=code, message=message)
            case SequenceCancelled(used=used):
                answer.cut(index, used)
        if isinstance(output, SequenceFailed | SequenceCancelled) and not live.is_ending:
            live.is_ending = True
            applied.ended_early += live.open_sequence_ids()
        if live.is_ending and not live.open_sequence_ids():
            end = live.cancelled() if live.failure is None else live.failed(live.failure)
            applied.events += self._end(live, end)

    def _feed(
        self, live: LiveRequest, answer: Answer, index: int, result: Result, applied: Applied
    ) -> None:
        events = answer.feed(index, result)
        if live.first_token_unix_s is None and answer.has_begun:
            live.first_token_unix_s = self._clock()
        if answer.has_finished(index) and not _is_engines_word(result):
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
        """Holds the lock already. ``event`` is terminal."""
        del self._live[live.request_id]
        log_end(live, event, now_unix_s=self._clock())
        if live.is_orphan:
            return []
        return live.last_events(event)

    def _fail_where(
        self, is_hit: Callable[[LiveRequest], bool], failure: Failure
    ) -> list[AddressedEvent]:
        with self._lock:
            hits = [live for live in self._live.values() if is_hit(live)]
            return [event for live in hits for event in self._end(live, live.failed(failure))]

    def _orphan(self, is_hit: Callable[[LiveRequest], bool]) -> int:
        """Stop sending events of these requests: they are cancelled."""
        with self._lock:
            hits = [live for live in self._live.values() if is_hit(live) and not live.is_orphan]
            for live in hits:
                live.is_orphan = True
                if live.engine is None:
                    self._end(live, live.cancelled())
        for live in hits:
            self._ask_to_cancel(live)
        return len(hits)

    def _ask_to_cancel(self, live: LiveRequest) -> None:
        """Asks its engine to cancel it, once that has it: a cancel must not overtake its submit."""
        with self._lock:
            live.cancel_asked = True
            has_started = live.has_started
        if has_started and live.engine is not None:
            for open_id in live.open_sequence_ids():
                live.engine.cancel(open_id)


def _is_engines_word(result: Result) -> bool:
    """Whether the engine itself ended the sequence with this."""
    return isinstance(result, SequencesEmbedded) or result.finish_reason is not None


def log_end(live: LiveRequest, end: Event, *, now_unix_s: float) -> None:
    """``end`` is its terminal event. Contains nothing of the prompt or the answer."""
    usage: Usage | None = None
    timing: SequenceTiming | None = None
    outcome = "finished"
    match end:
        case Failed(failure=failure):
            outcome, usage = failure.code, end.usage
        case Cancelled():
            outcome, usage = "cancelled", end.usage
        case Finished():
            usage, timing = end.usage, end.timing
        case Embedded():
            usage = end.usage
    usage = usage or Usage(prompt_tokens=0, completion_tokens=0)
    first_token_s = (live.first_token_unix_s or now_unix_s) - live.started_unix_s
    log.info(
        "%s model=%s %s prompt=%d cached=%d completion=%d first_token_ms=%.0f ms=%.0f%s",
        live.request_id,
        live.submit.model,
        outcome,
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.completion_tokens,
        1000 * first_token_s,
        1000 * (now_unix_s - live.started_unix_s),
        "" if timing is None else phases(timing, usage.completion_tokens),
    )
