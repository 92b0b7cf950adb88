"""Percentiles that can be merged: values are counted in buckets, each a tenth wider than the one
before. Pure.

    bucket    0       1          2              n
    values   [0, 1)  [1, 1.1)   [1.1, 1.21)    [γⁿ⁻¹, γⁿ)

Adding two histograms gives that of all their values, which no average of percentiles does. A
percentile is off by at most ``MAX_ERROR`` of itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

GAMMA = 1.1
LOG_GAMMA = math.log(GAMMA)
MAX_ERROR = math.sqrt(GAMMA) - 1
MAX_VALUE = 2**63 - 1


def bucket_of(value: float) -> int:
    """Returns the value's bucket. Less than 0 counts as 0, and beyond ``MAX_VALUE`` as that."""
    if value < 1:
        return 0
    return 1 + int(math.log(min(value, MAX_VALUE)) / LOG_GAMMA)


def value_of(bucket: int) -> float:
    """The geometric middle of its bounds."""
    return 0.0 if bucket <= 0 else math.exp(LOG_GAMMA * (bucket - 0.5))


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """The least value that ``share`` of them (0 to 1) do not exceed; ``None``: there are none."""
    total = sum(counts.values())
    if total <= 0:
        return None
    rank = max(1, math.ceil(share * total))
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= rank:
            return value_of(bucket)
    return value_of(max(counts))
