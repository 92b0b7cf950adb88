"""Attention over paged keys and values with torch's operators, for single-token rows and for prompt
chunks: what runs wherever there is no kernel of our own.

Query heads that share a KV head are laid along the query axis, so that keys and values are never
repeated. Softmax is torch's ``scaled_dot_product_attention``.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from inference.models.batch import DecodeBatch, PrefillBatch, PrefillSpan
from inference.models.paged_kv import LayerKV

MOST_PARTS = 32
"""Of a decode row's context, which a kernel may compute side by side: a power of two."""


class DecodeAttention(Protocol):
    def __call__(self, queries: torch.Tensor, layer_kv: LayerKV) -> torch.Tensor:
        """One layer's (num_rows, heads, head_dim), whose keys and values are written
        -> (num_rows, heads * head_dim)."""
        ...


class PrefillAttention(Protocol):
    def __call__(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor | None,
        values: torch.Tensor | None,
        layer_kv: LayerKV,
    ) -> torch.Tensor:
        """One layer's (num_tokens, heads, head_dim) -> (num_tokens, heads * head_dim). ``keys`` and
        ``values`` are the rows' own, which are written: a kernel may read those."""
        ...


class Attention(Protocol):
    """Prepares a step once for all layers."""

    def for_decode(self, batch: DecodeBatch, block_tokens: int) -> DecodeAttention: ...

    def for_prefill(self, batch: PrefillBatch, block_tokens: int) -> PrefillAttention: ...


class TorchAttention:
    def __init__(self, sliding_window: int | None, dtype: torch.dtype) -> None:
        """``dtype`` is the activations'."""
        self._window = sliding_window
        self._dtype = dtype

    def for_decode(self, batch: DecodeBatch, block_tokens: int) -> DecodeAttention:
        num_context = batch.block_ids.shape[1] * block_tokens
        mask = decode_mask(batch.positions, num_context, self._window, self._dtype)

        def attend(queries: torch.Tensor, layer_kv: LayerKV) -> torch.Tensor:
            return attend_decode(queries, layer_kv, batch.block_ids, mask)

        return attend

    def for_prefill(self, batch: PrefillBatch, block_tokens: int) -> PrefillAttention:
        device = batch.positions.device
        masks = [prefill_mask(span, self._window, self._dtype, device) for span in batch.spans]

        def attend(
            queries: torch.Tensor,
            keys: torch.Tensor | None,
            values: torch.Tensor | None,
            layer_kv: LayerKV,
        ) -> torch.Tensor:
            assert keys is not None and values is not None, "torch's rotation gives them"
            parts = []
            for span, mask in zip(batch.spans, masks, strict=True):
                rows = slice(span.first_row, span.last_row)
                own = keys[rows], values[rows]
                parts.append(
                    attend_prefill(queries[rows], *own, layer_kv, span, block_tokens, mask)
                )
            return torch.cat(parts)

        return attend


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
    queries: torch.Tensor, layer_kv: LayerKV, block_ids: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """(num_rows, heads, head_dim) over each row's blocks -> (num_rows, heads * head_dim).

    ``block_ids`` (num_rows, num_context_blocks); the context is ``mask``'s last axis long.
    """
    num_rows, num_heads, head_dim = queries.shape
    num_kv_heads, num_context = layer_kv.entries.shape[2], mask.shape[-1]
    block_tokens = num_context // block_ids.shape[1]
    gathered = layer_kv.gather(block_ids.flatten(), block_tokens, queries.dtype)
    context = gathered.view(num_rows, num_context, 2, num_kv_heads, head_dim)
    context = context.permute(2, 0, 3, 1, 4)
    grouped = queries.view(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
    attended = scaled_dot_product_attention(grouped, context[0], context[1], attn_mask=mask)
    return attended.reshape(num_rows, num_heads * head_dim)


def attend_prefill(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    layer_kv: LayerKV,
    span: PrefillSpan,
    block_tokens: int,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """One span's (num_tokens, heads, head_dim) -> (num_tokens, heads * head_dim).

    ``keys`` and ``values`` are the span's own; all else comes from the blocks, and so do they where
    the blocks hold them rounded: what a row sees must not depend on how a prompt was cut.
    ``mask`` is ``prefill_mask``'s.
    """
    num_tokens, num_heads, head_dim = queries.shape
    if span.start > 0 or layer_kv.entries.dtype != queries.dtype:
        gathered = layer_kv.gather(span.block_ids, block_tokens, queries.dtype)
        keys, values = gathered[: span.end].unbind(1)
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
