"""Models the time of a step on this device, fitted to the times of steps:

    seconds = fixed + rows · row + (prompt + tokens · token, where there are prompt tokens)

``fixed`` is the cost of every step (reading the weights, launches), ``prompt`` that of having
prompts, however short: packed weights are unpacked for each chunk. One model of an engine serves
the pace of prompts, the running limit and drafts. Pure: times are arguments, plain floats.
"""

from __future__ import annotations

from collections.abc import Sequence

FADING = 0.9
"""Each later step multiplies a step's weight by this: the last ten decide, as machines change."""
SETTLED_AFTER = 4
"""A spread is known after so many numbers."""


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
"""Longer steps, relative to the expected time, count as this long: something else delayed them."""
TRUSTED_AFTER = 8
"""The expected time is trusted after so many steps."""
REFITTED_EVERY = 8
"""Decode steps between two fits, after the first ``ALWAYS_REFITTED``: a fit costs some 30 µs."""
ALWAYS_REFITTED = 32
SCALED_ROWS, SCALED_TOKENS = 64, 512
"""The rows and tokens of a typical large step. Terms are divided by them, so that coefficients are
of one magnitude."""
STIFFNESS = (0.02, 0.001, 0.02, 0.001)
"""How firmly each coefficient keeps its value while steps do not separate them: a time is explained
by the cost of a row or token before a fixed cost."""
LEAST_HOLD = 1e-9
"""The least weight of a coefficient's value, where no recent step depends on it."""
LARGEST_WEIGHT = 1e9
UNTRIED_ROW_SHARE = 0.04
"""A row's share of a step of one row, before steps of several sizes have been timed."""
DIFFERENT = 0.2
"""Decode steps whose rows vary by less, relative to their mean, do not separate a row's cost from
that of the step."""
FORGETTING = 0.001
"""How far each decode step among steps of one size moves the row's share to
``UNTRIED_ROW_SHARE``, so that drafts that did not pay long ago are tried again."""
SHORTEST_S = 1e-5

Vector = list[float]


class StepTimeModel:
    """Starts from assumed costs of a row and a token. No cost is negative."""

    def __init__(self, *, row_s: float, token_s: float) -> None:
        self._coefficients = [0.0, row_s * SCALED_ROWS, 0.0, token_s * SCALED_TOKENS]
        size = len(self._coefficients)
        self._squares = [[0.0] * size for _ in range(size)]
        """Sums over steps of the products of two of their terms, divided by the step's time; the
        upper triangle only."""
        self._sums = [0.0] * size
        self._weight = 1.0
        """The weight of the next step. It grows, so that earlier steps fade untouched."""
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
        """Returns the time of a step of ``num_rows`` relative to one of the fewer
        ``num_base_rows``, without prompts; at least 1. Steps of one size do not change it."""
        fixed_share = 1.0 - self._row_share
        base = fixed_share + self._row_share * num_base_rows
        return max(1.0, (fixed_share + self._row_share * num_rows) / base)

    def rows_within(self, step_s: float) -> float:
        """Returns how many rows fit a step of ``step_s`` without prompts."""
        left_s = step_s - self._coefficients[0]
        row_s = self._coefficients[1] / SCALED_ROWS
        return max(0.0, left_s / row_s) if row_s > 0 else float("inf")

    def tokens_within(self, step_s: float, num_rows: int) -> float:
        """Returns how many prompt tokens fit beside ``num_rows`` into a step of ``step_s``."""
        left_s = step_s - self.seconds(num_rows, 0) - self.prompt_s
        return max(0.0, left_s / self.token_s) if self.token_s > 0 else float("inf")

    def record(self, num_rows: int, num_tokens: int, step_s: float) -> None:
        """Weighs a step by its relative error, so short ones count as much as long ones."""
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
        """Fits by least squares over the faded steps, held near the last fit. A coefficient that
        would be negative is 0, and the others are fitted without it."""
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
            # Relative to the data: as firm on any device, for prompts as for the steps between.
            hold = STIFFNESS[i] * self._squares[i][i] + LEAST_HOLD * self._weight
            row = [self._squares[min(i, j)][max(i, j)] for j in free]
            row[len(matrix)] += hold
            matrix.append(row)
            right.append(self._sums[i] + hold * self._coefficients[i])
        return _solve(matrix, right)


def untried_step_time() -> StepTimeModel:
    """Returns a model of any device: its costs matter only until the first step."""
    return StepTimeModel(row_s=0.0125, token_s=0.0002)


def _solve(matrix: list[Vector], right: Vector) -> Vector:
    """Gaussian elimination of a symmetric positive definite system, which needs no pivots. Mutates
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
