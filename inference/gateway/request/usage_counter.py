"""Counts what one attempt of a request uses, by its events. Pure but for its callbacks.

Accepted ─▶ prompt counted        tokens ─▶ counted        terminal event ─▶ settled, once
                                    its stream expects no more events ─▶ settle_as_counted

It ends nothing: its ``RequestStream`` passes it every event and ends the attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable

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
    Usage,
)

NOTHING = Usage(prompt_tokens=0, completion_tokens=0)


class UsageCounter:
    """Counts every event of its attempt, also those after its client has left.

    ``on_accepted`` is called with the prompt's length."""

    __slots__ = (
        "_completion_tokens",
        "_on_accepted",
        "_prompt_tokens",
        "_when_settled",
        "begun_s",
        "first_token_s",
        "is_settled",
        "usage",
    )

    def __init__(self, on_accepted: Callable[[int], None] | None = None) -> None:
        self.usage: Usage = NOTHING
        self.first_token_s: float | None = None
        """``time.monotonic``; ``None``: no token has come."""
        self.begun_s: float | None = None
        """``time.monotonic`` when its engine began, as far as that is reported, else when its
        neuron had prepared it; ``None``: it was not accepted."""
        self.is_settled = False
        self._when_settled: list[Callable[[], None]] = []
        self._on_accepted = on_accepted
        self._prompt_tokens = 0
        self._completion_tokens = 0

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
            case Finished():
                if event.timing is not None and self.begun_s is not None:
                    self.begun_s += event.timing.queue_ms / 1000
                self._settle(event.usage)
            case Embedded():
                self._settle(event.usage)
            case Failed() | Cancelled():
                self._settle(event.usage or NOTHING)
            case _ if isinstance(event, ANSWERS):
                self._settle(NOTHING)
            case _:
                self._count_tokens(getattr(event, "num_tokens", 0))

    def _count_tokens(self, num_tokens: int) -> None:
        if self.first_token_s is None:
            self.first_token_s = time.monotonic()
        self._completion_tokens += num_tokens

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Called once there is nothing more to come; at once where that is so already."""
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
            self._settle(NOTHING)
        else:
            self._settle(
                Usage(prompt_tokens=self._prompt_tokens, completion_tokens=self._completion_tokens)
            )

    def _settle(self, usage: Usage) -> None:
        self.usage = usage
        self.is_settled = True
        self._on_accepted = None  # breaks a cycle: the callback's request refers to its counter
        callbacks, self._when_settled = self._when_settled, []
        for callback in callbacks:
            callback()
