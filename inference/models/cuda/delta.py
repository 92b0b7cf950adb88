"""A DeltaNet layer's chunks of a prompt, one after the other on the card: torch's operators take a
launch for each."""

from __future__ import annotations

import torch
import triton

from inference.models.cuda.delta_kernels import chunk_states_kernel

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
