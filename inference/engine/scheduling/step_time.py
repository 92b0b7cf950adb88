"""How long a step takes on this device, fitted to the times of steps:

    seconds = fixed + rows · row + (prompt + tokens · token, where there are prompt tokens)

``fixed`` is what every step costs (reading the weights, launches), ``prompt`` what a step with
prompts costs once, however short they are: packed weights are unpacked for each chunk. One model of
an engine serves the pace of prompts, the running limit and drafts. Pure: times are arguments, plain
floats, one thread.
"""

from __future__ import annotations

from collections.abc import Sequence

FADING = 0.9
"""What a step counts for, with each later one: the last ten decide, as machines change."""
SETTLED_AFTER = 4
"""Numbers after which a spread is known."""


class Spread:
    """Faded mean and variance."""

    def __init__(self) -> None:
        self._num = 0
        self._mean = self._variance = 0.0

    def record(self, value: float) -> None:
        self._num += 1
        gain = max(1 - FADING, 1 / self._num)
        away = value - self._mean
        self._mean += gain * away
        self._variance += gain * ((1 - gain) * away**2 - self._variance)

    @property
    def is_settled(self) -> bool:
        return self._num >= SETTLED_AFTER

    def is_within(self, share: float) -> bool:
        """Whether the standard deviation is less than ``share`` of the mean."""
        return self._variance < (share * self._mean) ** 2


LONGEST = 3.0
"""A step that takes more than this many times as long as expected met with something else."""
TRUSTED_AFTER = 8
"""Steps after which an expectation is one."""
REFITTED_EVERY = 8
"""Decode steps, once the first ``ALWAYS_REFITTED`` have been: a fit costs the host some 30 µs."""
ALWAYS_REFITTED = 32
SCALED_ROWS, SCALED_TOKENS = 64, 512
"""The rows and tokens of a typical large step; terms are divided by them, so that all coefficients
are about as large."""
STIFFNESS = (0.02, 0.001, 0.02, 0.001)
"""How firmly each coefficient keeps its value while steps do not separate them: the cost of one
more row or token explains a time before a fixed cost does."""
LEAST_HOLD = 1e-9
"""The least weight that holds a coefficient in place on which no recent step depends."""
LARGEST_WEIGHT = 1e9
UNTRIED_ROW_SHARE = 0.04
"""A row's part of a step of one row, before steps of several sizes have been timed: a few rows
share the weights that are read for them."""
DIFFERENT = 0.2
"""Decode steps whose rows vary by less, in parts of their mean, do not separate a row's cost from
that of the step."""
FORGETTING = 0.001
"""How far ``UNTRIED_ROW_SHARE`` is approached with each decode step among steps of one size, so
that drafts that did not pay long ago are tried again."""
SHORTEST_S = 1e-5

Vector = list[float]


class StepTimeModel:
    """Starts from what one row and one token are taken to cost; never negative."""

    def __init__(self, *, row_s: float, token_s: float) -> None:
        self._coefficients = [0.0, row_s * SCALED_ROWS, 0.0, token_s * SCALED_TOKENS]
        size = len(self._coefficients)
        self._squares = [[0.0] * size for _ in range(size)]
        """The sums over steps of the products of two of their terms, each in parts of the step's
        time. Only products of a term with a later one are kept."""
        self._sums = [0.0] * size
        self._weight = 1.0
        """The weight of the next step. It grows, so that the steps before it fade without being
        touched."""
        self._num_steps = 0
        self._decode_rows = Spread()
        self._row_share = UNTRIED_ROW_SHARE

    @property
    def is_measured(self) -> bool:
        return self._num_steps > 0

    @property
    def fixed_s(self) -> float:
        return self._coefficients[0]

    @property
    def prompt_s(self) -> float:
        return self._coefficients[2]

    @property
    def token_s(self) -> float:
        return self._coefficients[3] / SCALED_TOKENS

    def seconds(self, num_rows: int, num_tokens: int) -> float:
        fixed, row, prompt, token = self._coefficients
        seconds = fixed + row * num_rows / SCALED_ROWS
        return seconds + prompt + token * num_tokens / SCALED_TOKENS if num_tokens else seconds

    def ratio(self, num_rows: int, num_base_rows: int) -> float:
        """How much longer a step of ``num_rows`` takes than one of the fewer ``num_base_rows``,
        neither with prompts; 1 at least. While all steps have as many rows, their times move
        the coefficients and not this."""
        fixed_share = 1.0 - self._row_share
        base = fixed_share + self._row_share * num_base_rows
        return max(1.0, (fixed_share + self._row_share * num_rows) / base)

    def rows_within(self, step_s: float) -> float:
        """How many rows a step of ``step_s`` serves that has no prompts."""
        left_s = step_s - self._coefficients[0]
        row_s = self._coefficients[1] / SCALED_ROWS
        return max(0.0, left_s / row_s) if row_s > 0 else float("inf")

    def tokens_within(self, step_s: float, num_rows: int) -> float:
        """How many prompt tokens fit beside ``num_rows`` into a step of ``step_s``."""
        left_s = step_s - self.seconds(num_rows, 0) - self.prompt_s
        return max(0.0, left_s / self.token_s) if self.token_s > 0 else float("inf")

    def record(self, num_rows: int, num_tokens: int, step_s: float) -> None:
        """A step weighs by its relative error, so short ones count as much as long ones."""
        if self._num_steps >= TRUSTED_AFTER:
            step_s = min(step_s, LONGEST * self.seconds(num_rows, num_tokens))
        step_s = max(step_s, SHORTEST_S)
        self._add(num_rows, num_tokens, step_s)
        self._num_steps += 1
        is_early = self._num_steps <= ALWAYS_REFITTED
        if num_tokens or is_early or self._num_steps % REFITTED_EVERY == 0:
            self._fit()
        if num_rows and not num_tokens:
            self._decode_rows.record(num_rows)
            self._learn_row_share()

    def _learn_row_share(self) -> None:
        fixed, row = self._coefficients[0], self._coefficients[1] / SCALED_ROWS
        if not self._decode_rows.is_within(DIFFERENT) and fixed + row > 0:
            self._row_share = row / (fixed + row)
        else:
            self._row_share += FORGETTING * (UNTRIED_ROW_SHARE - self._row_share)

    def _add(self, num_rows: int, num_tokens: int, step_s: float) -> None:
        """Costs little where there are no prompt tokens: most steps have none."""
        terms = [1 / step_s, num_rows / SCALED_ROWS / step_s]
        if num_tokens:
            terms += [1 / step_s, num_tokens / SCALED_TOKENS / step_s]
        weight, squares, sums = self._weight, self._squares, self._sums
        for i, term in enumerate(terms):
            weighted = weight * term
            sums[i] += weighted
            row = squares[i]
            for j in range(i, len(terms)):
                row[j] += weighted * terms[j]
        self._weight = weight / FADING
        if self._weight > LARGEST_WEIGHT:
            self._rescale()

    def _rescale(self) -> None:
        self._squares = [[value / self._weight for value in row] for row in self._squares]
        self._sums = [value / self._weight for value in self._sums]
        self._weight = 1.0

    def _fit(self) -> None:
        """Least squares over the faded steps, held near the last fit; a coefficient that would be
        negative is 0, and the others are fitted without it."""
        free = list(range(len(self._coefficients)))
        found = [0.0] * len(free)
        while free:
            solution = self._solution(free)
            if all(value >= 0 for value in solution):
                for index, value in zip(free, solution, strict=True):
                    found[index] = value
                break
            free = [index for index, value in zip(free, solution, strict=True) if value >= 0]
        self._coefficients = found

    def _solution(self, free: Sequence[int]) -> Vector:
        matrix: list[Vector] = []
        right: Vector = []
        for i in free:
            # Relative to the data on it, so that the hold is as firm on any device, and for prompts
            # as for the many short steps between them.
            hold = STIFFNESS[i] * self._squares[i][i] + LEAST_HOLD * self._weight
            row = [self._squares[min(i, j)][max(i, j)] for j in free]
            row[len(matrix)] += hold
            matrix.append(row)
            right.append(self._sums[i] + hold * self._coefficients[i])
        return _solve(matrix, right)


def untried_step_time() -> StepTimeModel:
    """Returns a model for steps whose time no target bounds: its costs of a row and a token matter
    only until the first step."""
    return StepTimeModel(row_s=0.0125, token_s=0.0002)


def _solve(matrix: list[Vector], right: Vector) -> Vector:
    """Gauss' elimination of a symmetric positive definite system, which needs no pivots. Changes
    its arguments."""
    size = len(right)
    for i in range(size):
        for j in range(i + 1, size):
            factor = matrix[j][i] / matrix[i][i]
            for k in range(i, size):
                matrix[j][k] -= factor * matrix[i][k]
            right[j] -= factor * right[i]
    found = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(matrix[i][k] * found[k] for k in range(i + 1, size))
        found[i] = (right[i] - rest) / matrix[i][i]
    return found
