"""How fast it goes: tokens per second over the last few seconds, and prompts on average over the
last tens of thousands of tokens. Times are arguments; knows nothing of sequences."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from inference.engine.scheduling.chunks import SMALLEST_CHUNK
from inference.protocol.prefill_speed import PrefillSpeed

WINDOW_S = 10.0
AVERAGED_TOKENS = 32_768
"""What a token says of speed fades over so many later ones."""


class TokenRates:
    """Tokens of the window divided by the time its steps took, so that an idle engine keeps showing
    how fast it was until the window has passed, and then shows 0."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float, int, int]] = deque()
        self._decode_s = self._prefill_s = 0.0
        self._num_decode = self._num_prefill = 0

    def record(
        self, *, now_s: float, step_s: float, num_decode_tokens: int, num_prefill_tokens: int
    ) -> None:
        self._add(step_s, num_decode_tokens, num_prefill_tokens)
        self._steps.append((now_s, step_s, num_decode_tokens, num_prefill_tokens))
        self._forget_before(now_s - WINDOW_S)

    def decode_tokens_per_s(self, now_s: float) -> float:
        self._forget_before(now_s - WINDOW_S)
        return self._num_decode / self._decode_s if self._decode_s > 0 else 0.0

    def prefill_tokens_per_s(self, now_s: float) -> float:
        self._forget_before(now_s - WINDOW_S)
        return self._num_prefill / self._prefill_s if self._prefill_s > 0 else 0.0

    def _add(self, step_s: float, num_decode: int, num_prefill: int) -> None:
        """A mixed step's time counts for both: neither had it to itself."""
        if num_decode:
            self._decode_s += step_s
            self._num_decode += num_decode
        if num_prefill:
            self._prefill_s += step_s
            self._num_prefill += num_prefill

    def _forget_before(self, then_s: float) -> None:
        while self._steps and self._steps[0][0] < then_s:
            _, step_s, num_decode, num_prefill = self._steps.popleft()
            self._add(-step_s, -num_decode, -num_prefill)
        if not self._steps:
            # Sums of floats taken off again need not come back to exactly nothing.
            self._decode_s = self._prefill_s = 0.0


class PrefillAverage:
    """How fast prompts go, kept as how much slower or faster than the formula said: so short and
    long prompts, and parts that were cached, average into one speed that holds at any length.

    Steps that also decode do not count: their time is not the prompt's alone.
    """

    def __init__(self, start: PrefillSpeed) -> None:
        self._start = start
        self._slowdown = 1.0
        self.speed = start

    def record(self, spans: Iterable[tuple[int, int]], step_s: float) -> None:
        """``spans``: the ``[start, end)`` of each prompt in a step of nothing else."""
        num_tokens, expected_s = 0, 0.0
        for start, end in spans:
            num_tokens += end - start
            expected_s += self._start.span_s(start, end)
        if num_tokens < SMALLEST_CHUNK or expected_s <= 0:
            return  # small remainders say little of speed
        gain = num_tokens / AVERAGED_TOKENS
        self._slowdown += min(gain, 1.0) * (step_s / expected_s - self._slowdown)
        self.speed = self._start.slowed(self._slowdown)
