"""Attention over paged keys and values, for single-token rows and for prompt chunks.

Query heads that share a KV head are laid along the query axis, so that keys and values are never
repeated. Softmax is torch's ``scaled_dot_product_attention``.
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from inference.models.batch import PrefillSpan


def write(
    layer_kv: torch.Tensor, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> None:
    """Store (num_tokens, kv_heads, head_dim) keys and values at ``slots`` of one layer."""
    stored = torch.stack((keys, values), dim=1).to(layer_kv.dtype)
    layer_kv.index_copy_(0, slots, stored)


def decode_mask(
    positions: torch.Tensor, num_context_tokens: int, sliding_window: int | None, dtype: torch.dtype
) -> torch.Tensor:
    """(num_rows, 1, 1, num_context_tokens) of ``dtype``, 0 where a row may look, else -inf: at its
    own position and before, and within the window."""
    context = torch.arange(num_context_tokens, device=positions.device)
    distance = positions.unsqueeze(1) - context
    hidden = distance < 0
    if sliding_window is not None:
        hidden |= distance >= sliding_window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=positions.device)
    return mask.masked_fill_(hidden, float("-inf"))[:, None, None]


def attend_decode(
    queries: torch.Tensor, layer_kv: torch.Tensor, block_ids: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """(num_rows, heads, head_dim) over each row's blocks -> (num_rows, heads * head_dim).

    ``block_ids`` (num_rows, num_context_blocks); the context is ``mask``'s last axis long.
    """
    num_rows, num_heads, head_dim = queries.shape
    _, _, num_kv_heads, _ = layer_kv.shape
    num_context = mask.shape[-1]
    gathered = _gather(layer_kv, block_ids.flatten(), num_context // block_ids.shape[1])
    context = gathered.view(num_rows, num_context, 2, num_kv_heads, head_dim)
    context = context.permute(2, 0, 3, 1, 4).to(queries.dtype)
    grouped = queries.view(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
    attended = scaled_dot_product_attention(grouped, context[0], context[1], attn_mask=mask)
    return attended.reshape(num_rows, num_heads * head_dim)


def attend_prefill(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    layer_kv: torch.Tensor,
    span: PrefillSpan,
    block_tokens: int,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """One span's (num_tokens, heads, head_dim) -> (num_tokens, heads * head_dim).

    ``keys`` and ``values`` are the span's own, as written; the sequence's earlier ones come from
    the blocks. ``mask`` is ``prefill_mask``'s.
    """
    num_tokens, num_heads, head_dim = queries.shape
    if span.start > 0:
        gathered = _gather(layer_kv, span.block_ids, block_tokens)
        context = gathered.view(-1, *layer_kv.shape[1:])[: span.end].to(queries.dtype)
        keys, values = context.unbind(1)
    attended = scaled_dot_product_attention(
        queries.transpose(0, 1).unsqueeze(0),
        keys.transpose(0, 1).unsqueeze(0),
        values.transpose(0, 1).unsqueeze(0),
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=True,
    )
    return attended.squeeze(0).transpose(0, 1).reshape(num_tokens, num_heads * head_dim)


def prefill_mask(
    span: PrefillSpan, sliding_window: int | None, dtype: torch.dtype, device: torch.device
) -> torch.Tensor | None:
    """(num_tokens, end), 0 where a row may look, else -inf. ``None``: plain causal, from the start
    of the sequence."""
    if span.start == 0 and (sliding_window is None or span.end <= sliding_window):
        return None
    rows = torch.arange(span.start, span.end, device=device).unsqueeze(1)
    distance = rows - torch.arange(span.end, device=device)
    hidden = distance < 0
    if sliding_window is not None:
        hidden |= distance >= sliding_window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
    return mask.masked_fill_(hidden, float("-inf"))


def _gather(layer_kv: torch.Tensor, block_ids: torch.Tensor, block_tokens: int) -> torch.Tensor:
    """Whole blocks, copied: one row of contiguous memory each."""
    return layer_kv.view(layer_kv.shape[0] // block_tokens, -1).index_select(0, block_ids)
