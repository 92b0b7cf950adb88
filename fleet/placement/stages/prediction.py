"""Predicts a plan's tokens per second for one request and for many. Pure.

groups in flight    stage 1   A B A B A …      as many groups as keep all stages busy, and as
                    stage 2     A B A B …      few as read the weights seldom: the best counts
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.placement.stages.search import Share, links_s
from fleet.placement.stages.step_times import StepTimes

MANY = 16
"""Requests at once."""
TOKENS_PER_REQUEST = 1024
"""The number of tokens whose keys and values a request is taken to have."""


def step_s(times: StepTimes, shares: Sequence[Share], num_rows: float = 1) -> float:
    """One step of ``num_rows`` sequences, through all stages and back."""
    return sum(_stage_times(times, shares, num_rows)) + _links_s(times, shares, num_rows)


def tokens_per_s(times: StepTimes, shares: Sequence[Share], num_running: int) -> float:
    """Returns the tokens per second of ``num_running`` requests together."""
    return max(
        _tokens_per_s_in_groups(times, shares, num_running, num_groups)
        for num_groups in range(1, min(len(shares), num_running) + 1)
    )


def _tokens_per_s_in_groups(
    times: StepTimes, shares: Sequence[Share], num_running: int, num_groups: int
) -> float:
    num_rows = num_running / num_groups
    stages = _stage_times(times, shares, num_rows)
    round_s = max(num_groups * max(stages), sum(stages) + _links_s(times, shares, num_rows))
    return num_running / round_s


def _stage_times(times: StepTimes, shares: Sequence[Share], num_rows: float) -> list[float]:
    seconds = [share.num_layers * times.layer_s(share.device, num_rows) for share in shares]
    seconds[0] += times.head_s(shares[0].device, num_rows)
    return seconds


def _links_s(times: StepTimes, shares: Sequence[Share], num_rows: float) -> float:
    network_s = {one.device.neuron: times.network_s(one.device.link, num_rows) for one in shares}
    return links_s(shares, times.local_s(num_rows), network_s)
