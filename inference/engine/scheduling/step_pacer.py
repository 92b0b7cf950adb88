"""How much a step may hold, so that it stays short on any machine: seats for sequences, and prompt
tokens beside those that decode.

A cancel is obeyed between steps, and a client that leaves is to be let go within 200 ms: so a step
is to take a tenth of a second, whatever that is in rows here and now. On a GPU all the seats that
were asked for fit; on two CPU cores a step of 256 rows takes 0.4 s, and a few dozen already bring
as many tokens per second, so the rest gain nothing by sitting down.
"""

from __future__ import annotations

from inference.engine.scheduling.prefill_pacer import SMALLEST_CHUNK

SMALLEST_HOUSE = 8
"""Seats that there always are: so few rows share the weights that are read for them."""
MEMORY_STEPS = 256
"""Steps with prompts after which one that was too large for the memory may be tried again."""
GAIN = 0.25
"""How far one step's time moves an estimate: one slow step is noise, five are news."""


class StepPacer:
    """Learns what a decode row and a prompt token take, from the times of steps. Never asks that a
    running sequence be evicted: fewer seats only keep new ones waiting.

    ``target_s`` ``None``: always ``max_seats`` and ``max_prefill_tokens``.
    """

    def __init__(self, max_seats: int, max_prefill_tokens: int, target_s: float | None) -> None:
        self._max_seats = max_seats
        self._max_prefill_tokens = max_prefill_tokens
        self._fitting_tokens = max_prefill_tokens
        """Prompt tokens of one step that the memory holds, as far as is known."""
        self._num_steps_that_fit = 0
        self._target_s = target_s
        self._seats = float(min(SMALLEST_HOUSE, max_seats))
        """Those that one step may serve in ``target_s``, as far as is known."""
        if target_s is not None:
            self._row_s = target_s / self._seats
            self._token_s = target_s / max(max_prefill_tokens // 4, SMALLEST_CHUNK)

    @property
    def num_seats(self) -> int:
        return self._max_seats if self._target_s is None else int(self._seats)

    def prefill_tokens(self, num_decode_rows: int) -> int:
        """Prompt tokens that a step has time for beside its decode rows."""
        if self._target_s is None:
            return self._fitting_tokens
        left_s = self._target_s - num_decode_rows * self._row_s
        return min(max(int(left_s / self._token_s), SMALLEST_CHUNK), self._fitting_tokens)

    def record_too_large(self, num_prefill_tokens: int) -> None:
        """A step of so many prompt tokens did not fit the memory."""
        smaller = min(num_prefill_tokens // 2, self._fitting_tokens)
        self._fitting_tokens = max(smaller, SMALLEST_CHUNK)
        self._num_steps_that_fit = 0

    def record(self, *, num_decode_rows: int, num_prefill_tokens: int, step_s: float) -> None:
        """A mixed step's time is shared out as it was expected to be. Small remainders of prompts
        say little of speed and are passed over."""
        if num_prefill_tokens:
            self._record_fit()
        if self._target_s is None or step_s <= 0:
            return
        expected_decode_s = num_decode_rows * self._row_s
        expected_s = expected_decode_s + num_prefill_tokens * self._token_s
        decode_s = step_s * expected_decode_s / expected_s if expected_s > 0 else 0.0
        if num_decode_rows:
            self._row_s += GAIN * (decode_s / num_decode_rows - self._row_s)
            self._move_seats(num_decode_rows, decode_s, self._target_s)
        if num_prefill_tokens >= SMALLEST_CHUNK:
            token_s = (step_s - decode_s) / num_prefill_tokens
            self._token_s += GAIN * (token_s - self._token_s)

    def _record_fit(self) -> None:
        """Who else had the memory may have given it back."""
        self._num_steps_that_fit += 1
        if self._num_steps_that_fit % MEMORY_STEPS == 0:
            self._fitting_tokens = min(2 * self._fitting_tokens, self._max_prefill_tokens)

    def _move_seats(self, num_rows: int, decode_s: float, target_s: float) -> None:
        """A few rows cost more each than many do, so what they promise is too little: they never
        take seats away. Only a step that was too long does."""
        bearable = num_rows * target_s / decode_s
        if decode_s > target_s or bearable > self._seats:
            moved = self._seats + GAIN * (bearable - self._seats)
            self._seats = min(max(moved, SMALLEST_HOUSE), self._max_seats)
