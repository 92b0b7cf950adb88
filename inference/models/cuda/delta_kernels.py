"""Triton kernel: the states that chunks of a prompt begin with, of a DeltaNet layer, in one
launch."""

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
