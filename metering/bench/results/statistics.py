"""Medians, nearest-rank percentiles, and whether two sets of samples differ beyond noise. Pure.

The test is Mann and Whitney's U (H. B. Mann, D. R. Whitney, "On a test of whether one of two random
variables is stochastically larger than the other", 1947): it asks nothing of the distribution, and
timings have long tails. The ratio beside it is Hodges and Lehmann's estimate, the median of the
ratios of all pairs, and its interval are those ratios that the same test does not refuse.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

MAX_EXACT_SAMPLES = 40
"""The number of samples on both sides together beyond which the normal approximation is as good."""
INTERVAL_CONFIDENCE = 0.95


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Returns the nearest-rank percentile: the smallest value that ``percent`` of all do not
    exceed."""
    if not values:
        return None
    rank = max(1, math.ceil(percent / 100 * len(values)))
    return sorted(values)[rank - 1]


@dataclass(frozen=True, slots=True)
class RankTest:
    u: float
    """The number of all pairs in which the first sample is the larger one; ties count half."""
    p_value: float
    """Two-sided: how likely so much difference is where there is none."""
    is_exact: bool


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> RankTest:
    """Exact over all ways to deal the ranks while there are few samples, ties included; else by the
    normal distribution, corrected for ties and for continuity. Neither may be empty."""
    assert first and second, "a test needs samples of both"
    ranks = _doubled_ranks([*first, *second])
    rank_sum = sum(ranks[: len(first)])
    u = rank_sum / 2 - len(first) * (len(first) + 1) / 2
    if len(ranks) <= MAX_EXACT_SAMPLES:
        return RankTest(u, _exact_p(tuple(sorted(ranks)), len(first), rank_sum), True)
    return RankTest(u, _normal_p(ranks, len(first), u), False)


def least_p_value(num_first: int, num_second: int) -> float:
    """The smallest that so many samples can show: with less than four on each side nothing is ever
    significant."""
    return min(1.0, 2 / math.comb(num_first + num_second, num_first))


@dataclass(frozen=True, slots=True)
class Ratio:
    """The second's values to the first's; ``low`` to ``high`` is the interval."""

    estimate: float
    low: float
    high: float


def ratio_of(first: Sequence[float], second: Sequence[float]) -> Ratio | None:
    """``None`` where a value is no positive number."""
    if not first or not second or min(*first, *second) <= 0:
        return None
    ratios = sorted(after / before for before in first for after in second)
    cut = interval_cut(len(first), len(second), INTERVAL_CONFIDENCE)
    return Ratio(statistics.median(ratios), ratios[cut], ratios[-1 - cut])


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Twice the ranks from 1, so that the shared rank of equal values is whole."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for position in order[start:end]:
            ranks[position] = start + 1 + end
        start = end
    return ranks


def _exact_p(ranks: tuple[int, ...], num_first: int, rank_sum: int) -> float:
    ways = _ways(ranks, num_first)
    mean = sum(ranks) * num_first / len(ranks)
    distance = abs(rank_sum - mean)
    as_far = sum(count for total, count in ways.items() if abs(total - mean) >= distance - 1e-9)
    return min(1.0, as_far / sum(ways.values()))


@lru_cache(maxsize=256)
def _ways(ranks: tuple[int, ...], num_chosen: int) -> dict[int, int]:
    """Returns in how many ways ``num_chosen`` of the ranks add up to each sum."""
    by_number: list[dict[int, int]] = [{0: 1}, *({} for _ in range(num_chosen))]
    for rank in ranks:
        for number in range(num_chosen, 0, -1):
            target = by_number[number]
            for total, count in by_number[number - 1].items():
                target[total + rank] = target.get(total + rank, 0) + count
    return by_number[num_chosen]


def _normal_p(ranks: Sequence[int], num_first: int, u: float) -> float:
    num = len(ranks)
    num_pairs = num_first * (num - num_first)
    ties = sum(count**3 - count for count in _counts(ranks))
    variance = num_pairs / 12 * (num + 1 - ties / (num * (num - 1)))
    if variance <= 0:
        return 1.0
    distance = max(0.0, abs(u - num_pairs / 2) - 0.5)
    return math.erfc(distance / math.sqrt(2 * variance))


def _counts(values: Sequence[int]) -> list[int]:
    counts: dict[int, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return list(counts.values())


@lru_cache(maxsize=256)
def interval_cut(num_first: int, num_second: int, confidence: float) -> int:
    """How many of the sorted ratios are outside at each end."""
    tail = (1 - confidence) / 2
    num, num_pairs = num_first + num_second, num_first * num_second
    if num > MAX_EXACT_SAMPLES:
        deviation = math.sqrt(num_pairs * (num + 1) / 12)
        quantile = statistics.NormalDist().inv_cdf(1 - tail)
        return max(0, math.floor(num_pairs / 2 - quantile * deviation))
    ways = _ways(tuple(range(1, num + 1)), num_first)
    least, total = num_first * (num_first + 1) // 2, math.comb(num, num_first)
    cumulated, cut = 0, 0
    for u in range(num_pairs // 2):
        cumulated += ways.get(least + u, 0)
        if cumulated / total > tail:
            break
        cut = u + 1
    return min(cut, (num_pairs - 1) // 2)
