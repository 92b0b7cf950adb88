"""How many drafts pay in one step. Pure."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import Protocol

LENGTHS = (1, 2, 3, 5, 7, 11, 15)
WORTH = 1.03
"""What drafts have to bring, in tokens for a step's time against none: guesses are guesses."""


class Costs(Protocol):
    def ratio(self, num_rows: int, num_base_rows: int) -> float: ...


def best_length(
    num_rows: int, candidates: Ordered[tuple[int, float]], costs: Costs, most_rows: int
) -> int:
    """The length that drafts are cut to; 0: none pay. ``candidates``: each proposal's length and
    the chance of each of its tokens, of some of the step's ``num_rows`` sequences."""
    best, best_worth = 0, WORTH
    longest = max((length for length, _ in candidates), default=0)
    for length in (*(some for some in LENGTHS if some < longest), longest):
        drafted = sum(min(length, own) for own, _ in candidates)
        if drafted == 0 or num_rows + drafted > most_rows:
            break
        worth = worth_of(length, num_rows, candidates, costs)
        if worth > best_worth:
            best, best_worth = length, worth
    return best


def worth_of(
    length: int, num_rows: int, candidates: Ordered[tuple[int, float]], costs: Costs
) -> float:
    """What drafts of ``length`` tokens at most are expected to bring: tokens for a step's time,
    against a step without drafts."""
    drafted = sum(min(length, own) for own, _ in candidates)
    gained = sum(_expected(min(length, own), rate) for own, rate in candidates)
    return (num_rows + gained) / num_rows / costs.ratio(num_rows + drafted, num_rows)


def _expected(length: int, rate: float) -> float:
    """Tokens that are right, of a run that ends at the first that is not."""
    if rate >= 1.0:
        return float(length)
    return rate * (1.0 - rate**length) / (1.0 - rate)
