"""One back-off for every loop that repeats what failed."""

from __future__ import annotations

import pytest

from inference.backoff import Backoff
from tests.cases import each_case


@each_case(
    ("num_failures", "wait_s"), [(1, 0.1), (2, 0.2), (3, 0.4), (4, 0.8), (5, 1.0), (100_000, 1.0)]
)
def test_each_failure_doubles_the_wait_up_to_the_longest(num_failures: int, wait_s: float) -> None:
    assert Backoff(first_s=0.1, max_s=1.0).wait_s(num_failures) == pytest.approx(wait_s)
