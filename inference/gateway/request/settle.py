"""Counts what a request uses and records its end: a line in the log, the metrics, the ledger.

    Accepted ─▶ prompt counted     tokens ─▶ counted     terminal event ─▶ settled, once
                                     its stream expects no more events ─▶ settle_as_counted
    settled and answered ─▶ RequestOutcome ─▶ log, then each listener

The counter ends nothing: its ``RequestStream`` passes it every event of one attempt and ends the
attempt. Nothing else keeps a record of its own of how a request ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from inference.protocol.engine import SequenceTiming
from inference.protocol.events import (
    ANSWERS,
    Accepted,
    Cancelled,
    Delta,
    Embedded,
    EmbeddedPart,
    Event,
    Failed,
    Finished,
    PromptScored,
    StageTimes,
    Traced,
    Usage,
)
from metering.ledger.entries import ERRORS, TOKENS, UNAVAILABLE, Outcome, Settle

if TYPE_CHECKING:
    from inference.gateway.request.call import Capture
    from inference.gateway.tracing.spans import RequestSpans

logger = logging.getLogger("helexa.requests")

PROBES = frozenset({"/health", "/ping"})
"""Asked every few seconds by whatever watches a gateway: their lines would bury the others."""

MAX_CAUSE_CHARACTERS = 300
NO_MODEL = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcome:
    """How one request ended. ``settle.model`` is a catalogue name, never a client's text."""

    settle: Settle
    """What the log, the metrics and the ledger record of it; the ledger only where
    ``is_billed``."""
    is_billed: bool
    """It was submitted, and what it asks for has a price: it gets a ledger entry."""
    kind: Outcome
    status: int
    was_cold: bool
    error_status: int = 0
    """The status of the error that it ended with; ``status`` is 200 where its stream had begun."""
    error_message: str = ""
    error_cause: str = ""
    is_self_test: bool = False
    """``serve`` has asked it: it is logged, and nothing else."""
    model_asked: str = ""
    end_user: str = ""
    captured: Capture | None = None
    is_usage_estimated: bool = False
    targets_tried: tuple[str, ...] = ()
    spans: RequestSpans | None = None
    queue_ms: int | None = None
    """The time from its first header to the start of its work; ``None``: it never started."""

    @property
    def duration_s(self) -> float:
        return self.settle.duration_ms / 1000

    @property
    def time_to_first_token_s(self) -> float | None:
        first_ms = self.settle.time_to_first_token_ms
        return None if first_ms is None else first_ms / 1000


class RequestRecords(Protocol):
    """``metering.request_records.writer`` in front of the database."""

    def start(self) -> None: ...
    def stop(self, timeout_s: float) -> None: ...

    def add(self, ended: RequestOutcome) -> None: ...

    @property
    def depth(self) -> int: ...

    @property
    def num_dropped(self) -> int: ...


Listener = Callable[[RequestOutcome], None]


class Outcomes:
    """``listeners`` are called in their order, then ``on_error`` where the client got an error; one
    that fails does not keep the others from it."""

    def __init__(self, *listeners: Listener, on_error: Listener) -> None:
        self._listeners = (log, *listeners)
        self._listeners_of_errors = (*self._listeners, on_error)

    def record(self, outcome: RequestOutcome) -> None:
        listeners = self._listeners_of_errors if outcome.kind in ERRORS else self._listeners
        for listener in (log,) if outcome.is_self_test else listeners:
            try:
                listener(outcome)
            except Exception:
                logger.exception("the end of request %s is not recorded", outcome.settle.request_id)


def recorded_by(records: RequestRecords) -> Listener:
    def record(outcome: RequestOutcome) -> None:
        if outcome.settle.endpoint not in PROBES:
            records.add(outcome)

    return record


def end_spans(outcome: RequestOutcome) -> None:
    if outcome.spans is not None:
        outcome.spans.end(outcome)


def log(outcome: RequestOutcome) -> None:
    """Holds no client's text: the model is the catalogue's name, the client one of a fixed set, and
    only failures of the server have their cause with them."""
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


NOTHING = Usage(prompt_tokens=0, completion_tokens=0)


class UsageCounter:
    """Counts every event of its attempt, also those after its client has left.

    ``on_accepted`` is called with the prompt's length."""

    __slots__ = (
        "_completion_tokens",
        "_is_cut",
        "_on_accepted",
        "_prompt_tokens",
        "_when_counted",
        "_when_settled",
        "begun_s",
        "first_token_s",
        "is_settled",
        "stage_times",
        "timing",
        "trace",
        "usage",
    )

    def __init__(self, on_accepted: Callable[[int], None] | None = None) -> None:
        self.usage: Usage = NOTHING
        self.first_token_s: float | None = None
        self.begun_s: float | None = None
        """``time.monotonic`` when its engine began, as far as that is reported, else when its
        neuron had prepared it; ``None``: it was not accepted."""
        self.trace = ""
        self.stage_times: StageTimes | None = None
        self.timing: SequenceTiming | None = None
        self.is_settled = False
        self._when_counted: Callable[[int, int, int, int], None] | None = None
        self._when_settled: list[Callable[[], None]] = []
        self._on_accepted = on_accepted
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._is_cut = False

    def cut(self) -> None:
        """The client is told an error: tokens that come after it are not billed."""
        self._is_cut = True

    def count(self, event: Event) -> None:
        if self.is_settled:
            return
        match event:
            case Delta():  # most events are this one
                self._count_tokens(event.num_tokens)
            case Accepted():
                self.begun_s = time.monotonic()
                self._prompt_tokens = event.prompt_tokens
                if self._on_accepted is not None:
                    self._on_accepted(event.prompt_tokens)
            case PromptScored() | EmbeddedPart():
                pass
            case Traced():
                self.trace = event.text
            case StageTimes():
                self.stage_times = event
            case Finished():
                self.timing = event.timing
                if event.timing is not None and self.begun_s is not None:
                    self.begun_s += event.timing.queue_ms / 1000
                self.settle(event.usage)
            case Embedded():
                self.settle(event.usage)
            case Failed() | Cancelled():
                self.settle(event.usage or NOTHING)
            case _ if isinstance(event, ANSWERS):
                self.settle(NOTHING)
            case _:
                self._count_tokens(getattr(event, "num_tokens", 0))

    @property
    def accepted_s(self) -> float | None:
        if self.begun_s is None or self.timing is None:
            return self.begun_s
        return self.begun_s - self.timing.queue_ms / 1000

    def _count_tokens(self, num_tokens: int) -> None:
        if self._is_cut:
            return
        if self.first_token_s is None:
            self.first_token_s = time.monotonic()
        self._completion_tokens += num_tokens
        if self._when_counted is not None:
            self._when_counted(self._prompt_tokens, 0, self._completion_tokens, 0)

    def when_counted(self, callback: Callable[[int, int, int, int], None]) -> None:
        """Called with the tokens used, in the order of ``entries.TOKENS``, whenever some have
        come."""
        self._when_counted = callback

    def when_settled(self, callback: Callable[[], None]) -> None:
        if self.is_settled:
            callback()
        else:
            self._when_settled.append(callback)

    def settle_as_counted(self) -> None:
        """Settle by the tokens counted, because no more events come. A prompt without a first token
        may not have been computed, so it costs nothing."""
        if self.is_settled:
            return
        if self.first_token_s is None:
            self.settle(NOTHING)
        else:
            self.settle(
                Usage(prompt_tokens=self._prompt_tokens, completion_tokens=self._completion_tokens)
            )

    def settle(self, usage: Usage) -> None:
        self.usage = self._until_cut(usage) if self._is_cut else usage
        self.is_settled = True
        if self._when_counted is not None:
            self._when_counted(*(getattr(self.usage, name) for name in TOKENS))
        # These break a cycle: the callbacks' request refers to its counter.
        self._on_accepted = self._when_counted = None
        callbacks, self._when_settled = self._when_settled, []
        for callback in callbacks:
            callback()

    def _until_cut(self, usage: Usage) -> Usage:
        if self.first_token_s is None:
            return NOTHING
        return msgspec.structs.replace(
            usage,
            completion_tokens=min(usage.completion_tokens, self._completion_tokens),
            reasoning_tokens=min(usage.reasoning_tokens, self._completion_tokens),
        )
