"""Every request this neuron has not ended yet, and the rule that each ends exactly once.

    admit ─▶ WAITING ─begin─▶ STARTING ─started─▶ RUNNING ─▶ (gone, one terminal event)
                │                 │
                └── cancel: ends here   └── cancel: remembered, sent once the engine has it

Whoever removes a request from the table emits its terminal event, so nobody can do it twice. Knows
no Redis: events are returned with the gateway they are for. Any thread may call; nothing blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from inference.neuron.answers import Answer
from inference.protocol.engine import SequenceCancelled, SequenceFailed, SequenceStep
from inference.protocol.events import TERMINAL_EVENTS, Cancelled, Event, Failed, Failure
from inference.protocol.generation import Submit

SequenceOutput = SequenceStep | SequenceFailed | SequenceCancelled


class Engine(Protocol):
    def cancel(self, request_id: str) -> None:
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


@dataclass(slots=True)
class Applied:
    """What engine outputs came to."""

    events: list[AddressedEvent] = field(default_factory=list)
    ended_early: list[str] = field(default_factory=list)
    """Requests that a stop string ended: the engine must still be told to cancel them."""


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
            engine = live.engine if live.has_started else None
        if engine is not None:
            engine.cancel(request_id)
        return []

    def fail(self, request_id: str, failure: Failure) -> list[AddressedEvent]:
        """Empty when it has ended already."""
        with self._lock:
            live = self._live.pop(request_id, None)
        if live is None:
            return []
        return [live.addressed(Failed(request_id=request_id, failure=failure))]

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
                live = self._live.get(output.request_id)
                if live is not None:
                    self._apply_one(live, output, applied)
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

    def _apply_one(self, live: _LiveRequest, output: SequenceOutput, applied: Applied) -> None:
        request_id = output.request_id
        events: list[Event]
        match output:
            case SequenceStep():
                assert live.answer is not None, "an engine spoke of a request it was not given"
                events = live.answer.feed(output)
                if output.finish_reason is None and events and _is_terminal(events[-1]):
                    applied.ended_early.append(request_id)
            case SequenceFailed(code=code, message=message):
                failure = Failure(code=code, message=message)
                events = [Failed(request_id=request_id, failure=failure)]
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
            if live.engine is not None:
                live.engine.cancel(live.submit.request_id)
        return len(dropped)

    def _pop_where(self, is_hit: Callable[[_LiveRequest], bool]) -> list[_LiveRequest]:
        with self._lock:
            hits = [live for live in self._live.values() if is_hit(live)]
            for live in hits:
                del self._live[live.submit.request_id]
        return hits


def _is_terminal(event: Event) -> bool:
    return isinstance(event, TERMINAL_EVENTS)
