"""Where long prompts are cut, so that steps stay short. Plain integers."""

from __future__ import annotations

CHUNK_MULTIPLE = 16
"""Rows that products take at once: two tiles on CPU (``native/activations.h``), an operand of a
matrix instruction on CUDA. A chunk that ends elsewhere pays for the rest."""

SMALLEST_CHUNK = 32
"""Below this a projection's weights are read for too few rows to be worth it."""


def end_of_chunk(start: int, length: int, budget: int) -> int:
    """Where a chunk of at most ``budget`` tokens ends that begins at ``start`` of ``length``. What
    is left is shared out evenly over as many steps as it takes: a short one at the end, which
    serves few rows with all the weights, would take more time than they save."""
    left = length - start
    num_steps = -(-left // budget)
    end = start + -(-left // num_steps)
    if num_steps == 1:
        return end
    rounded_up = -(-end // CHUNK_MULTIPLE) * CHUNK_MULTIPLE
    if rounded_up - start <= budget:
        return min(rounded_up, length)
    rounded_down = end // CHUNK_MULTIPLE * CHUNK_MULTIPLE
    return rounded_down if rounded_down > start else end
