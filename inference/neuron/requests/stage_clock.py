"""The stages of a traced request.

arrives ─prepare─▶ handed over ─queue─▶ first step ─prefill─▶ first token ─decode─▶ ends
"""

from __future__ import annotations

import time
from collections.abc import Callable

from inference.protocol.engine import (
    SequenceCancelled,
    SequenceFailed,
    SequencesEmbedded,
    SequenceStep,
)
from inference.protocol.events import StageTimes
from inference.protocol.generation import GenerationRequest, Submit

Result = SequenceStep | SequencesEmbedded
SequenceOutput = Result | SequenceFailed | SequenceCancelled


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
