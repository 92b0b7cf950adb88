"""How much a step may hold, so that it stays short on any machine: seats for sequences, and prompt
tokens beside those that decode.

A cancel is obeyed between steps, and a client that leaves is to be let go within 200 ms: so a step
is to take a tenth of a second, whatever that is in rows here and now. On a GPU all the seats that
were asked for fit; on two CPU cores a step of 256 rows takes 0.4 s, and a few dozen already bring
as many tokens per second, so the rest gain nothing by sitting down.
"""

from __future__ import annotations

from inference.engine.scheduling.chunks import SMALLEST_CHUNK
from inference.engine.scheduling.spread import Spread
from inference.engine.scheduling.step_time import SHORTEST_S, StepTimeModel

SMALLEST_HOUSE = 8
"""Seats that there always are: so few rows share the weights that are read for them."""
MEMORY_STEPS = 256
"""Steps with prompts after which one that was too large for the memory may be tried again."""
GAIN = 0.25
"""How far one step moves the seats: one slow step is noise, five are news."""
UNIFORM = 0.06
"""Chunks whose sizes vary by less, in parts of their mean, do not separate a token's cost from that
of a step with prompts."""
PROBE = 1.3
"""How much longer a chunk is that is to separate them: one in some ten."""
UNTRIED_TARGET_S = 0.1
"""What a first guess of a step's time begins from where no target is set."""
MOST_TARGETS = 5
"""How many times the target a step may take so that a prompt's chunk is worth its fixed cost."""


class StepPacer:
    """Bounds steps by the ``StepTimeModel`` of this device. Never asks that a running sequence be
    evicted: fewer seats only keep new ones waiting.

    ``target_s`` ``None``: always ``max_seats`` and ``max_prefill_tokens``. Either way ``step_time``
    is fitted to the steps recorded here, and others may read it.
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
        self._chunks = Spread()
        begin_s = UNTRIED_TARGET_S if target_s is None else target_s
        self.step_time = StepTimeModel(
            row_s=begin_s / self._seats,
            token_s=begin_s / max(max_prefill_tokens // 4, SMALLEST_CHUNK),
        )

    @property
    def num_seats(self) -> int:
        return self._max_seats if self._target_s is None else int(self._seats)

    def prefill_tokens(self, num_decode_rows: int) -> int:
        """Prompt tokens that a step has time for beside its decode rows; but so many at least that
        they take as long as what a step costs once. Where that alone takes the target,
        shorter chunks would make steps little shorter and prompts many times slower."""
        if self._target_s is None:
            return self._fitting_tokens
        model = self.step_time
        num_tokens = model.tokens_within(self._target_s, num_decode_rows)
        if model.token_s > 0:
            efficient = (model.fixed_s + model.prompt_s) / model.token_s
            most = model.tokens_within(MOST_TARGETS * self._target_s, num_decode_rows)
            num_tokens = max(num_tokens, min(efficient, most))
        num_tokens = max(num_tokens, SMALLEST_CHUNK)
        if self._chunks.is_settled and self._chunks.is_within(UNIFORM):
            num_tokens *= PROBE
        return int(min(num_tokens, self._fitting_tokens))

    def record_too_large(self, num_prefill_tokens: int) -> None:
        """A step of so many prompt tokens did not fit the memory."""
        smaller = min(num_prefill_tokens // 2, self._fitting_tokens)
        self._fitting_tokens = max(smaller, SMALLEST_CHUNK)
        self._num_steps_that_fit = 0

    def record(self, *, num_decode_rows: int, num_prefill_tokens: int, step_s: float) -> None:
        """Small remainders of prompts reveal little of speed and are skipped."""
        if num_prefill_tokens:
            self._record_fit()
        if step_s <= 0 or 0 < num_prefill_tokens < SMALLEST_CHUNK:
            return
        self.step_time.record(num_decode_rows, num_prefill_tokens, step_s)
        if num_prefill_tokens:
            self._chunks.record(num_prefill_tokens)
        if num_decode_rows and self._target_s is not None:
            whole_s = self.step_time.seconds(num_decode_rows, num_prefill_tokens)
            decode_s = self.step_time.seconds(num_decode_rows, 0)
            share = decode_s / whole_s if whole_s > 0 else 1.0
            self._move_seats(num_decode_rows, step_s * share, self._target_s)

    def _record_fit(self) -> None:
        """Who else had the memory may have given it back."""
        self._num_steps_that_fit += 1
        if self._num_steps_that_fit % MEMORY_STEPS == 0:
            self._fitting_tokens = min(2 * self._fitting_tokens, self._max_prefill_tokens)

    def _move_seats(self, num_rows: int, decode_s: float, target_s: float) -> None:
        """A few rows cost more each than many do, so what they promise is too little: they never
        take seats away. Only a step that was too long does. Nor is the model believed that many
        more rows than ever ran cost next to nothing: seats grow in proportion to what ran."""
        proportional = num_rows * target_s / max(decode_s, SHORTEST_S)
        bearable = min(proportional, self.step_time.rows_within(target_s))
        if decode_s > target_s or bearable > self._seats:
            moved = self._seats + GAIN * (bearable - self._seats)
            self._seats = min(max(moved, SMALLEST_HOUSE), self._max_seats)
