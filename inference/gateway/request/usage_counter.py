"""Counts one attempt's usage, for its bill.

    Accepted ─▶ prompt counted     tokens ─▶ counted     terminal event ─▶ settled, once
                                     its stream expects no more events ─▶ settle_as_counted

The counter ends nothing: its ``RequestStream`` passes it every event and ends the attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

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
from metering.ledger.entries import TOKENS

NOTHING = Usage(prompt_tokens=0, completion_tokens=0)


class UsageCounter:
    """Counts every event of its attempt, also after its client has left.

    ``on_accepted`` is called with the prompt's length.
    """

    def __init__(self, on_accepted: Callable[[int], None] | None = None) -> None:
        self.usage: Usage = NOTHING
        self.first_token_s: float | None = None
        self.begun_s: float | None = None
        """``time.monotonic`` when its engine began, if reported, else when its neuron had prepared
        it; ``None``: it was not accepted."""
        self.trace = ""
        self.stage_times: StageTimes | None = None
        self.is_settled = False
        self._when_counted: Callable[[int, int, int, int], None] | None = None
        self._when_settled: list[Callable[[], None]] = []
        self._on_accepted = on_accepted
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._is_cut = False

    def cut(self) -> None:
        """The client gets an error: later tokens are not billed."""
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

    def _count_tokens(self, num_tokens: int) -> None:
        if self._is_cut:
            return
        if self.first_token_s is None:
            self.first_token_s = time.monotonic()
        self._completion_tokens += num_tokens
        if self._when_counted is not None:
            self._when_counted(self._prompt_tokens, 0, self._completion_tokens, 0)

    def when_counted(self, callback: Callable[[int, int, int, int], None]) -> None:
        """Calls ``callback`` with the tokens used, in the order of ``entries.TOKENS``, whenever
        they grow."""
        self._when_counted = callback

    def when_settled(self, callback: Callable[[], None]) -> None:
        if self.is_settled:
            callback()
        else:
            self._when_settled.append(callback)

    def settle_as_counted(self) -> None:
        """Settles by the tokens counted, because no more events come. A prompt without a first
        token may not have been computed, so it costs nothing."""
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
