"""Rates from times of arrival."""

from __future__ import annotations

import pytest

from benchmarks.workload import tokens_per_s_together


def test_equal_streams_count_all_but_their_first_tokens() -> None:
    assert tokens_per_s_together([[1.0, 2.0, 3.0]] * 8) == pytest.approx(8.0)


def test_what_one_stream_did_alone_is_left_out() -> None:
    ahead = [0.0, 1.0, 2.0, 3.0, 4.0]
    behind = [2.0, 3.0, 4.0, 5.0, 6.0]
    assert tokens_per_s_together([ahead, behind]) == pytest.approx(4 / 2.0)


def test_streams_one_after_the_other_have_no_rate() -> None:
    with pytest.raises(ValueError, match="never decoding together"):
        tokens_per_s_together([[0.0, 1.0], [2.0, 3.0]])
