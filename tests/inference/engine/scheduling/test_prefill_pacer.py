"""Prompt chunks follow the machine's speed."""

from __future__ import annotations

import pytest

from inference.engine.scheduling.prefill_pacer import SMALLEST_CHUNK, PrefillPacer


@pytest.mark.parametrize(
    ("tokens_per_s", "expected"), [(2000.0, 200), (1e9, 512), (50.0, SMALLEST_CHUNK)]
)
def test_settles_where_a_step_takes_the_target(tokens_per_s: float, expected: int) -> None:
    pacer = PrefillPacer(512, target_s=0.1)
    for _ in range(20):
        num_tokens = pacer.num_tokens
        pacer.record(num_prefill_tokens=num_tokens, step_s=num_tokens / tokens_per_s)
    assert pacer.num_tokens == pytest.approx(expected, abs=2)


def test_without_a_target_always_the_most() -> None:
    pacer = PrefillPacer(512, target_s=None)
    pacer.record(num_prefill_tokens=512, step_s=100.0)
    assert pacer.num_tokens == 512


def test_a_small_remainder_changes_nothing() -> None:
    pacer = PrefillPacer(512, target_s=0.1)
    before = pacer.num_tokens
    pacer.record(num_prefill_tokens=3, step_s=0.05)
    assert pacer.num_tokens == before
