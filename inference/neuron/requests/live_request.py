"""One request that has not ended: its gateway, its engine, and the state of its end.

Owned by the request table, under its lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from inference.protocol.engine import (
    SequenceCancelled,
    SequenceFailed,
    SequencesEmbedded,
    SequenceStep,
    SequenceUsage,
)
from inference.protocol.events import (
    Cancelled,
    Event,
    Failed,
    Failure,
    StageTimes,
    Traced,
    Usage,
)
from inference.protocol.generation import Submit

Result = SequenceStep | SequencesEmbedded
SequenceOutput = Result | SequenceFailed | SequenceCancelled


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

    def has_finished(self, index: int) -> bool:
        """Nothing more is wanted of sequence ``index``."""
        ...

    def feed(self, index: int, result: Result) -> list[Event]:
        """Ends with a terminal event once all sequences have finished."""
        ...

    def cut(self, index: int, used: SequenceUsage) -> None:
        """The engine ended sequence ``index`` before its end."""
        ...

    def usage(self) -> Usage | None:
        """What has been computed as far as is known; ``None``: nothing."""
        ...


class Engine(Protocol):
    def cancel(self, sequence_id: str) -> None:
        """Frees what the sequence holds; unknown ids and dead engines are ignored."""
        ...


class Trace(Protocol):
    def event(self) -> Traced: ...


class Stages(Protocol):
    def hand_over(self) -> None: ...
    def see(self, output: SequenceOutput) -> None: ...
    def event(self) -> StageTimes: ...


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
    stages: Stages | None = None
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
        """The sequences that the engine may still be working on."""
        if self.answer is None:
            return []
        answer = self.answer
        indices = range(answer.num_sequences)
        return [sequence_id(self.request_id, i) for i in indices if not answer.has_finished(i)]

    def cancel_in_engine(self) -> None:
        if self.engine is not None:
            for open_id in self.open_sequence_ids():
                self.engine.cancel(open_id)

    def failed(self, failure: Failure) -> Failed:
        """What it fails with: an earlier failure goes before ``failure``."""
        return Failed(
            request_id=self.request_id, failure=self.failure or failure, usage=self._usage()
        )

    def cut_off(self) -> Failed | Cancelled:
        """How it ends, once all sequences have ended and one of them was cut off."""
        if self.failure is not None:
            return self.failed(self.failure)
        return self.cancelled()

    def cancelled(self) -> Cancelled:
        return Cancelled(request_id=self.request_id, usage=self._usage())

    def _usage(self) -> Usage | None:
        return None if self.answer is None else self.answer.usage()
