"""The states that the chunks of a DeltaNet layer's prompt begin with, in one launch: torch's
operators take one a chunk."""

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_chunks"])
def chunk_states_kernel(
    carried,
    written,
    state,
    before,
    after,
    num_chunks,
    num_heads: tl.constexpr,
    key_dim: tl.constexpr,
    value_dim: tl.constexpr,
    padded_keys: tl.constexpr,
    tile_values: tl.constexpr,
):
    """Grid (heads, tiles of a state's values): S ← A S + B, chunk after chunk. Columns of a state
    do not depend on each other, so a program keeps its own in registers.

    ``carried`` (chunks, heads, keys, keys) are A, ``written`` (chunks, heads, keys, values) B."""
    head = tl.program_id(0)
    values = tl.program_id(1) * tile_values + tl.arange(0, tile_values)
    keys = tl.arange(0, padded_keys)
    is_key = keys < key_dim
    mask = is_key[:, None] & (values < value_dim)[None, :]
    of_state = keys[:, None] * value_dim + values[None, :]
    of_carried = keys[:, None] * key_dim + keys[None, :]
    state_numbers: tl.constexpr = key_dim * value_dim
    current = tl.load(state + head * state_numbers + of_state, mask=mask, other=0.0)
    place = head.to(tl.int64)
    for _ in range(num_chunks):
        tl.store(before + place * state_numbers + of_state, current, mask=mask)
        carries = tl.load(
            carried + place * (key_dim * key_dim) + of_carried,
            mask=is_key[:, None] & is_key[None, :],
            other=0.0,
        )
        writes = tl.load(written + place * state_numbers + of_state, mask=mask, other=0.0)
        current = tl.dot(carries, current, writes, input_precision="ieee")
        place += num_heads
    tl.store(after + head * state_numbers + of_state, current, mask=mask)


TILE_VALUES = 16
"""The values of a state that each program computes: what ``tl.dot`` takes at least."""
WARPS = 4
STAGES = 1
"""A chunk's product takes most of a multiprocessor's memory: none is fetched ahead."""


def triton_chunk_states(
    carried: torch.Tensor, written: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``delta_net.ChunkStates``."""
    num_chunks, num_heads, key_dim, value_dim = written.shape
    before, after = torch.empty_like(written), torch.empty_like(state)
    grid = num_heads, triton.cdiv(value_dim, TILE_VALUES)
    chunk_states_kernel[grid](
        carried.contiguous(),
        written.contiguous(),
        state.contiguous(),
        before,
        after,
        num_chunks,
        num_heads=num_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        padded_keys=max(TILE_VALUES, triton.next_power_of_2(key_dim)),
        tile_values=TILE_VALUES,
        num_warps=WARPS,
        num_stages=STAGES,
    )
    return before, after
