"""What part of the device's best a row's figure is, and what the goals ask. Pure arithmetic over
medians."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.cuda.plan import (
    BYTES_PER_TABLE_WEIGHT,
    BYTES_PER_WEIGHT,
    CONCURRENCIES,
    Row,
    workload_of,
)
from benchmarks.cuda.random_model import ALL_SHAPES
from benchmarks.cuda.shapes import decode_floor_bytes, prefill_floor_flops

DENSE_DECODE_GOAL = 0.8
QUANTIZED_DECODE_GOAL = 0.6
"""The goal as a share of the time that reading the weights and the context takes, for a sequence by
itself."""
PREFILL_GOAL = 0.5
"""The goal as a share of the rate of a large matrix product."""
CONTINUOUS_GOAL = 1.5
"""Times transformers' continuous batching, with the most sequences at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The device's best, as measured in the same run."""

    copy_bytes_per_s: float
    """Read and written."""
    matmul_flops_per_s: float


def share_of_limit(row: Row, tokens_per_s: float, limits: Limits) -> float:
    """1 is the device's best: decoding at the rate at which it copies, a prompt at the rate at
    which it multiplies."""
    config = ALL_SHAPES[row.shape]
    if row.measure == "prefill":
        return tokens_per_s * prefill_floor_flops(config, 1) / limits.matmul_flops_per_s
    steps_per_s = tokens_per_s / row.size
    step_bytes = decode_floor_bytes(
        config,
        bytes_per_weight=BYTES_PER_WEIGHT[row.weights],
        bytes_per_head_weight=BYTES_PER_TABLE_WEIGHT[row.weights],
        num_rows=row.size,
        context_tokens=workload_of(row.shape).mean_context_tokens,
    )
    return steps_per_s * step_bytes / limits.copy_bytes_per_s


def share_goal(row: Row) -> float | None:
    """``None`` where none is set."""
    if row.measure == "prefill":
        return PREFILL_GOAL
    if row.size > 1:
        return None
    return DENSE_DECODE_GOAL if row.weights == "bf16" else QUANTIZED_DECODE_GOAL


def ratio_goal(row: Row) -> float | None:
    is_set = (row.weights, row.measure, row.size) == ("bf16", "decode", max(CONCURRENCIES))
    return CONTINUOUS_GOAL if is_set else None
