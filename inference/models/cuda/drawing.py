"""Tokens found and drawn in rows of scores by one Triton kernel each, where torch's operators need
two and about a dozen."""

from __future__ import annotations

import torch
import triton

from inference.models.cuda.drawing_kernels import draw_kernel, likeliest_kernel

BLOCK_TOKENS = 4096
"""Looked at together."""
WARPS = 16
"""A row has one multiprocessor to itself."""
STAGES = 3
"""Blocks on their way while one is looked at."""


def find_likeliest(
    scores: torch.Tensor, block_tokens: int = BLOCK_TOKENS
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row's token with the largest score, the first of equals, (num_rows,) int64; and whether
    its scores are numbers and the largest is finite, bool. ``scores`` (num_rows, vocab_size)
    float32, rows anywhere."""
    assert scores.dtype == torch.float32 and scores.stride(1) == 1
    token_ids = torch.empty(len(scores), dtype=torch.int64, device=scores.device)
    are_finite = torch.empty(len(scores), dtype=torch.bool, device=scores.device)
    likeliest_kernel[(len(scores),)](
        scores,
        token_ids,
        are_finite,
        scores.stride(0),
        vocab_size=scores.shape[1],
        block=block_tokens,
        stages=STAGES,
        num_warps=WARPS,
    )
    return token_ids, are_finite


def draw_tokens(
    scores: torch.Tensor,
    integers: torch.Tensor,
    floats: torch.Tensor,
    block_tokens: int = BLOCK_TOKENS,
) -> torch.Tensor:
    """A token id for each draw, (num_draws,) int64, from the whole vocabulary. ``scores`` as for
    ``find_likeliest``; ``integers`` (num_draws, 2) int64: row, and top_k, 0 being all;
    ``floats`` (num_draws, 4) float32: temperature, top_p, min_p, and a uniform number in [0, 1).
    Any token where scores are not numbers. Waits for nothing."""
    assert scores.dtype == torch.float32 and scores.stride(1) == 1
    num_draws, vocab_size = len(integers), scores.shape[1]
    token_ids = torch.empty(num_draws, dtype=torch.int64, device=scores.device)
    draw_kernel[(num_draws,)](
        scores,
        integers,
        floats,
        token_ids,
        scores.stride(0),
        vocab_size=vocab_size,
        block=block_tokens,
        padded_blocks=triton.next_power_of_2(triton.cdiv(vocab_size, block_tokens)),
        stages=STAGES,
        num_warps=WARPS,
    )
    return token_ids
