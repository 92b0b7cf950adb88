"""Tokens found and drawn in rows of scores by one Triton kernel each, one program a row. The rules
are those of ``inference.engine.drawing``.

A token's weight is e ** ((score - largest) / temperature), computed again in every pass. Nothing is
sorted: numbers from 0 to 1 are ordered as their bits are, so a filter's threshold is a bit pattern,
and the kernel searches for it. A block of weights is summed in float32, the blocks in float64.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def likeliest_kernel(
    scores,
    token_ids,
    are_finite,
    row_stride,
    vocab_size: tl.constexpr,
    block: tl.constexpr,
    stages: tl.constexpr,
):
    """Grid (rows,): see ``find_likeliest``."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, block)
    maxima = tl.full([block], float("-inf"), tl.float32)
    places = lanes
    are_numbers = lanes >= 0
    for first in tl.range(0, vocab_size, block, num_stages=stages):
        tokens = first + lanes
        mask = tokens < vocab_size
        here = tl.load(scores + row * row_stride + tokens, mask=mask, other=float("-inf"))
        places = tl.where(here > maxima, tokens, places)
        maxima = tl.where(here > maxima, here, maxima)
        are_numbers = are_numbers & (here == here)
    largest = tl.max(maxima, 0)
    token_id = tl.min(tl.where(maxima == largest, places, vocab_size - 1), 0)
    num_numbers = tl.sum(are_numbers.to(tl.int32), 0)
    is_finite = (num_numbers == block) & (tl.abs(largest) < float("inf"))
    tl.store(token_ids + row, token_id.to(tl.int64))
    tl.store(are_finite + row, is_finite)


@triton.jit
def draw_kernel(
    scores,
    integers,
    floats,
    token_ids,
    row_stride,
    vocab_size: tl.constexpr,
    block: tl.constexpr,
    padded_blocks: tl.constexpr,
    stages: tl.constexpr,
):
    """Grid (draws,): see ``draw_tokens``."""
    draw = tl.program_id(0)
    row = scores + tl.load(integers + draw * 2) * row_stride
    top_k = tl.load(integers + draw * 2 + 1)
    top_p = tl.load(floats + draw * 4 + 1).to(tl.float64)
    min_p = tl.load(floats + draw * 4 + 2)
    uniform = tl.load(floats + draw * 4 + 3).to(tl.float64)
    # Times log2(e), for exp2; a temperature may be too small to have an inverse.
    scale = tl.minimum(1.4426950408889634 / tl.load(floats + draw * 4), 1e30)
    largest = largest_score(row, vocab_size, block, stages)
    smallest = smallest_kept(
        row, largest, scale, top_k, top_p, vocab_size, block, padded_blocks, stages
    )
    smallest = tl.maximum(smallest, min_p.to(tl.int32, bitcast=True))

    masses, _ = kept_masses(row, largest, scale, smallest, vocab_size, block, padded_blocks, stages)
    target = uniform * tl.sum(masses, 0)
    chosen = first_past(masses, target, padded_blocks)
    before = tl.sum(tl.where(tl.arange(0, padded_blocks) < chosen, masses, 0.0), 0)
    weights, bits = weights_at(row, chosen * block, largest, scale, vocab_size, block)
    kept = tl.where(bits >= smallest, weights, 0.0)
    token_id = chosen * block + first_past(kept, (target - before).to(tl.float32), block)
    tl.store(token_ids + draw, token_id.to(tl.int64))


@triton.jit
def smallest_kept(
    row,
    largest,
    scale,
    top_k,
    top_p,
    vocab_size: tl.constexpr,
    block: tl.constexpr,
    padded_blocks: tl.constexpr,
    stages: tl.constexpr,
):
    """The bits of the smallest weight that top_k, then top_p, keep; 0 for all."""
    smallest = tl.full([], 0, tl.int32)
    is_limited = (top_k > 0) & (top_k < vocab_size)
    if is_limited:
        limit = top_k.to(tl.float64)
        smallest = smallest_with_room(
            row, largest, scale, smallest, limit, False, vocab_size, block, stages
        )
    if top_p < 1.0:
        masses, num_kept = kept_masses(
            row, largest, scale, smallest, vocab_size, block, padded_blocks, stages
        )
        mass = tl.sum(masses, 0)
        if is_limited:
            # top_k has room for only some of the tokens that tie with the last one.
            surplus = tl.maximum(num_kept - top_k, 0).to(tl.float64)
            mass -= surplus * smallest.to(tl.float32, bitcast=True).to(tl.float64)
        smallest = smallest_with_room(
            row, largest, scale, smallest, top_p * mass, True, vocab_size, block, stages
        )
    return smallest


@triton.jit
def weights_at(row, first, largest, scale, vocab_size: tl.constexpr, block: tl.constexpr):
    """(block,) weights from token ``first`` on, 0 beyond the vocabulary, and their bits."""
    tokens = first + tl.arange(0, block)
    here = tl.load(row + tokens, mask=tokens < vocab_size, other=float("-inf"))
    weights = tl.exp2((here - largest) * scale)
    return weights, weights.to(tl.int32, bitcast=True)


@triton.jit
def largest_score(row, vocab_size: tl.constexpr, block: tl.constexpr, stages: tl.constexpr):
    lanes = tl.arange(0, block)
    maxima = tl.full([block], float("-inf"), tl.float32)
    for first in tl.range(0, vocab_size, block, num_stages=stages):
        mask = first + lanes < vocab_size
        here = tl.load(row + first + lanes, mask=mask, other=float("-inf"))
        maxima = tl.maximum(maxima, here)
    return tl.max(maxima, 0)


@triton.jit
def kept_masses(
    row,
    largest,
    scale,
    smallest,
    vocab_size: tl.constexpr,
    block: tl.constexpr,
    padded_blocks: tl.constexpr,
    stages: tl.constexpr,
):
    """Sums of each block's weights from ``smallest`` on, (padded_blocks,) float64; their number."""
    blocks = tl.arange(0, padded_blocks)
    masses = tl.zeros([padded_blocks], tl.float64)
    num_kept = tl.full([], 0, tl.int32)
    for first in tl.range(0, vocab_size, block, num_stages=stages):
        weights, bits = weights_at(row, first, largest, scale, vocab_size, block)
        is_kept = bits >= smallest
        mass = tl.sum(tl.where(is_kept, weights, 0.0), 0)
        masses = tl.where(blocks == first // block, mass.to(tl.float64), masses)
        num_kept += tl.sum(is_kept.to(tl.int32), 0)
    return masses, num_kept


@triton.jit
def smallest_with_room(
    row,
    largest,
    scale,
    least,
    limit,
    is_mass: tl.constexpr,
    vocab_size: tl.constexpr,
    block: tl.constexpr,
    stages: tl.constexpr,
):
    """The bits, from ``least`` on, of the smallest weight that those over it leave room for: they
    are less than ``limit``, by mass or by number. Where there is no room at all, those of 1.

        bits     least - 1 = low ...... pivots ...... high = those of 1
        over it      too many                           few enough

    Each pass asks at four pivots, and ends the range at weights that are there: it holds one value
    at the end, however many tokens have it.
    """
    low = least - 1
    high = tl.full([], 0x3F800000, tl.int32)
    while low + 1 < high:
        step = tl.maximum((high - low) // 5, 1)
        pivots = tl.minimum(low + step * (tl.arange(0, 4) + 1), high - 1)
        over = tl.zeros([4], tl.float64)
        lowest = tl.full([block], 0x7FFFFFFF, tl.int32)
        highest = tl.full([block], 0, tl.int32)
        for first in tl.range(0, vocab_size, block, num_stages=stages):
            weights, bits = weights_at(row, first, largest, scale, vocab_size, block)
            amounts = weights if is_mass else tl.full([block], 1.0, tl.float32)
            is_over = bits[None, :] > pivots[:, None]
            over += tl.sum(tl.where(is_over, amounts[None, :], 0.0), 1).to(tl.float64)
            is_inside = (bits > low) & (bits <= high)
            lowest = tl.where(is_inside, tl.minimum(lowest, bits), lowest)
            highest = tl.where(is_inside, tl.maximum(highest, bits), highest)
        has_room = over < limit
        low = tl.max(tl.where(has_room, low, pivots), 0)
        high = tl.min(tl.where(has_room, pivots, high), 0)
        low = tl.maximum(low, tl.min(lowest, 0) - 1)
        high = tl.minimum(high, tl.max(highest, 0))
    return high


@triton.jit
def first_past(amounts, target, size: tl.constexpr):
    """Where the sum first passes ``target``; if rounding leaves none, the last place with any."""
    places = tl.arange(0, size)
    has_any = amounts > 0.0
    is_past = has_any & (tl.cumsum(amounts, 0) > target)
    last = tl.max(tl.where(has_any, places, 0), 0)
    return tl.minimum(tl.min(tl.where(is_past, places, size), 0), last)


BLOCK_TOKENS = 4096
WARPS = 16
"""A row has one multiprocessor to itself."""
STAGES = 3


def find_likeliest(
    scores: torch.Tensor, block_tokens: int = BLOCK_TOKENS
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row's first token with the largest score, (num_rows,) int64; and whether its scores are
    numbers and the largest is finite. ``scores`` (num_rows, vocab_size) float32."""
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
    """(num_draws,) int64; any token where scores are not numbers. ``scores`` as for
    ``find_likeliest``; ``integers`` (num_draws, 2) int64: row, and top_k, 0 being all; ``floats``
    (num_draws, 4) float32: temperature, top_p, min_p, and a uniform number in [0, 1)."""
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
