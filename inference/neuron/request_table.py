"""Every request this neuron has not ended yet, and the rule that each ends exactly once.

    admit ─▶ WAITING ─begin─▶ STARTING ─started─▶ RUNNING ─▶ (gone, one terminal event)
                │                 │
                └── cancel: ends here   └── cancel: remembered, sent once the engine has it

A request runs as one sequence for each choice, ``sequence_id(request_id, index)`` to the engine.
Whoever removes a request from the table emits its terminal event, so nobody can do it twice. Knows
no Redis: events are returned with the gateway they are for. Any thread may call; nothing blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from inference.protocol.engine import (
    SequenceCancelled,
    SequenceFailed,
    SequencesEmbedded,
    SequenceStep,
)
from inference.protocol.events import TERMINAL_EVENTS, Cancelled, Event, Failed, Failure
from inference.protocol.generation import Submit

Result = SequenceStep | SequencesEmbedded
SequenceOutput = Result | SequenceFailed | SequenceCancelled


def sequence_id(request_id: str, index: int) -> str:
    return f"{request_id}/{index}"


class Answer(Protocol):
    """Turns what the engine says of a request's sequences into its events."""

    @property
    def num_sequences(self) -> int: ...
    def has_finished(self, index: int) -> bool:
        """Nothing more is wanted of sequence ``index``."""
        ...

    def feed(self, index: int, result: Result) -> list[Event]:
        """Ends with a terminal event once all sequences have finished."""
        ...


class Engine(Protocol):
    def cancel(self, sequence_id: str) -> None:
        """Frees what the sequence holds; unknown ids and dead engines are ignored."""
        ...


class AddressedEvent(NamedTuple):
    gateway_id: str
    event: Event


@dataclass(slots=True)
class _LiveRequest:
    submit: Submit
    answer: Answer | None = None
    engine: Engine | None = None
    has_started: bool = False
    cancel_asked: bool = False

    def addressed(self, event: Event) -> AddressedEvent:
        return AddressedEvent(self.submit.gateway_id, event)

    def open_sequence_ids(self) -> list[str]:
        """Those that the engine may still be working on."""
        if self.answer is None:
            return []
        request_id, answer = self.submit.request_id, self.answer
        indices = range(answer.num_sequences)
        return [sequence_id(request_id, i) for i in indices if not answer.has_finished(i)]

    def cancel_in_engine(self) -> None:
        if self.engine is not None:
            for open_id in self.open_sequence_ids():
                self.engine.cancel(open_id)


@dataclass(slots=True)
class Applied:
    """What engine outputs came to."""

    events: list[AddressedEvent] = field(default_factory=list)
    ended_early: list[str] = field(default_factory=list)
    """Sequences whose choice or request ended without the engine's knowing: it must still be told
    to cancel them."""


class RequestTable:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: dict[str, _LiveRequest] = {}

    def admit(self, submit: Submit) -> bool:
        """False when the id is already here: a frame that was delivered twice."""
        with self._lock:
            if submit.request_id in self._live:
                return False
            self._live[submit.request_id] = _LiveRequest(submit)
            return True

    def begin(self, request_id: str, answer: Answer, engine: Engine) -> bool:
        """Before the engine is told. False when the request ended while it was prepared."""
        with self._lock:
            live = self._live.get(request_id)
            if live is None:
                return False
            live.answer, live.engine = answer, engine
            return True

    def started(self, request_id: str) -> bool:
        """After the engine was told. True: it must be told to cancel, somebody asked meanwhile."""
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
                del self._live[request_id]
                return [live.addressed(Cancelled(request_id=request_id))]
            live.cancel_asked = True
            has_started = live.has_started
        if has_started:
            live.cancel_in_engine()
        return []

    def fail(self, request_id: str, failure: Failure) -> list[AddressedEvent]:
        """Empty when it has ended already."""
        return self.end(request_id, Failed(request_id=request_id, failure=failure))

    def end(self, request_id: str, event: Event) -> list[AddressedEvent]:
        """``event`` is terminal and needs no engine. Empty when the request has ended already."""
        with self._lock:
            live = self._live.pop(request_id, None)
        return [] if live is None else [live.addressed(event)]

    def fail_engine(self, engine: Engine, failure: Failure) -> list[AddressedEvent]:
        """Everything that ``engine`` was working on."""
        return self._fail_where(lambda live: live.engine is engine, failure)

    def fail_all(self, failure: Failure) -> list[AddressedEvent]:
        return self._fail_where(lambda live: True, failure)

    def apply(self, outputs: Iterable[SequenceOutput]) -> Applied:
        """Turns one engine step into events. Outputs of ended requests are dropped."""
        applied = Applied()
        with self._lock:
            for output in outputs:
                request_id, _, index = output.sequence_id.rpartition("/")
                live = self._live.get(request_id)
                if live is not None:
                    self._apply_one(live, int(index), output, applied)
        return applied

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drops requests whose gateway cannot be told anything, and frees what they hold."""
        wanted = frozenset(request_ids)
        self._drop(lambda live: live.submit.request_id in wanted)

    def forget_gateway(self, gateway_id: str) -> int:
        """How many requests the dead gateway had."""
        return self._drop(lambda live: live.submit.gateway_id == gateway_id)

    def gateway_ids(self) -> set[str]:
        with self._lock:
            return {live.submit.gateway_id for live in self._live.values()}

    def count(self, engine: Engine) -> int:
        """Requests that ``engine`` is working on."""
        with self._lock:
            return sum(live.engine is engine for live in self._live.values())

    def _apply_one(
        self, live: _LiveRequest, index: int, output: SequenceOutput, applied: Applied
    ) -> None:
        request_id, answer = live.submit.request_id, live.answer
        assert answer is not None, "an engine spoke of a request it was not given"
        if answer.has_finished(index):
            return  # it was ended early, and the engine had not heard of it yet
        events: list[Event]
        match output:
            case SequenceStep() | SequencesEmbedded():
                events = answer.feed(index, output)
                if answer.has_finished(index) and not _is_engines_word(output):
                    applied.ended_early.append(output.sequence_id)
            case SequenceFailed(code=code, message=message):
                failure = Failure(code=code, message=message)
                events = [Failed(request_id=request_id, failure=failure)]
                applied.ended_early.extend(
                    open_id for open_id in live.open_sequence_ids() if open_id != output.sequence_id
                )
            case SequenceCancelled():
                events = [Cancelled(request_id=request_id)]
        applied.events.extend(map(live.addressed, events))
        if events and _is_terminal(events[-1]):
            del self._live[request_id]

    def _fail_where(
        self, is_hit: Callable[[_LiveRequest], bool], failure: Failure
    ) -> list[AddressedEvent]:
        return [
            live.addressed(Failed(request_id=live.submit.request_id, failure=failure))
            for live in self._pop_where(is_hit)
        ]

    def _drop(self, is_hit: Callable[[_LiveRequest], bool]) -> int:
        dropped = self._pop_where(is_hit)
        for live in dropped:
            live.cancel_in_engine()
        return len(dropped)

    def _pop_where(self, is_hit: Callable[[_LiveRequest], bool]) -> list[_LiveRequest]:
        with self._lock:
            hits = [live for live in self._live.values() if is_hit(live)]
            for live in hits:
                del self._live[live.submit.request_id]
        return hits


def _is_engines_word(result: Result) -> bool:
    """Whether the engine itself ended the sequence with this."""
    return isinstance(result, SequencesEmbedded) or result.finish_reason is not None


def _is_terminal(event: Event) -> bool:
    return isinstance(event, TERMINAL_EVENTS)
