"""One request that has not ended: its gateway, its engine, its stages and the state of its end.

    arrives ─prepare─▶ handed over ─queue─▶ first step ─prefill─▶ first token ─decode─▶ ends

Owned by the request table, under its lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
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
from inference.protocol.generation import GenerationRequest, Submit

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

    def cancel_in_engine(self) -> None:
        if self.engine is not None:
            for open_id in self.open_sequence_ids():
                self.engine.cancel(open_id)

    def failed(self, failure: Failure) -> Failed:
        """Its terminal failure: an earlier one goes before ``failure``."""
        return Failed(
            request_id=self.request_id, failure=self.failure or failure, usage=self._usage()
        )

    def cut_off(self) -> Failed | Cancelled:
        """Its terminal event, once all sequences have ended and one of them was cut off."""
        if self.failure is not None:
            return self.failed(self.failure)
        return self.cancelled()

    def cancelled(self) -> Cancelled:
        return Cancelled(request_id=self.request_id, usage=self._usage())

    def _usage(self) -> Usage | None:
        return None if self.answer is None else self.answer.usage()


class StageClock:
    """Times the stages of one traced request from its arrival on. The engine reports the prefill
    alone, by its own clock: whatever else passes until the first token is waiting."""

    __slots__ = (
        "_arrived_s",
        "_clock",
        "_first_token_s",
        "_handed_over_s",
        "_has_tokens",
        "_is_cut",
        "_prefill_s",
        "_request_id",
    )

    def __init__(self, submit: Submit, clock: Callable[[], float] = time.monotonic) -> None:
        self._request_id = submit.request_id
        self._has_tokens = isinstance(submit.request, GenerationRequest)
        self._clock = clock
        self._arrived_s = clock()
        self._handed_over_s: float | None = None
        self._first_token_s: float | None = None
        self._prefill_s: float | None = None
        self._is_cut = False
        """The engine ended one of its sequences before that sequence's end."""

    def hand_over(self) -> None:
        """Records that it is prepared, and passed to its engine."""
        self._handed_over_s = self._clock()

    def see(self, output: SequenceOutput) -> None:
        """The engine's next output of one of its sequences."""
        match output:
            case SequencesEmbedded():
                return
            case SequenceStep(prefill_ms=prefill_ms):
                if prefill_ms is None or self._first_token_s is not None:
                    return
                self._first_token_s = self._clock()
            case _:
                self._is_cut = True
                prefill_ms = output.used.prefill_ms
        if self._prefill_s is None and prefill_ms is not None:
            self._prefill_s = prefill_ms / 1000

    def event(self) -> StageTimes:
        now_s = self._clock()
        handed_over_s = now_s if self._handed_over_s is None else self._handed_over_s
        queue_s, prefill_s, decode_s = self._engine_s(handed_over_s, now_s)
        return StageTimes(
            request_id=self._request_id,
            total_ms=1000 * (now_s - self._arrived_s),
            prepare_ms=1000 * (handed_over_s - self._arrived_s),
            queue_ms=_milliseconds(queue_s),
            prefill_ms=_milliseconds(prefill_s),
            decode_ms=_milliseconds(decode_s),
        )

    def _engine_s(
        self, handed_over_s: float, now_s: float
    ) -> tuple[float | None, float | None, float | None]:
        """Returns the seconds of the queue, the prefill and the decoding; ``None`` for those not
        known."""
        first_token_s, until_s = self._first_token_s, now_s
        if first_token_s is not None:
            until_s = first_token_s
        waited_s = until_s - handed_over_s
        if (prefill_s := self._prefill_s) is None:
            # Cut off before its first step. Without a word of its engine nothing is known.
            return (waited_s if self._is_cut and self._has_tokens else None), None, None
        prefill_s = min(prefill_s, waited_s)
        decode_s = None if first_token_s is None else now_s - first_token_s
        return waited_s - prefill_s, prefill_s, decode_s


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
