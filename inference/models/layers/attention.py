"""Attention over paged keys and values by torch's operators. Query heads that share a KV head are
laid along the query axis, so that keys and values are never repeated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from inference.models.device_step import DeviceStep
from inference.models.paged_kv import LayerKV
from inference.models.step_input import Query, num_blocks

MOST_GATHERED_BYTES = 128 * 1024**2
"""KV that a decode step copies out of blocks at once; one row's context may be more."""
MOST_PARTS = 32
"""Parts of a decode row's context that a kernel computes side by side: a power of two."""

SINK_FEATURES = 8
"""One is needed; kernels want heads of a multiple of 8."""


class Attend(Protocol):
    def __call__(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor | None,
        values: torch.Tensor | None,
        layer_kv: LayerKV,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(num_rows, heads, head_dim) of a whole step -> (num_rows, heads * head_dim). The blocks
        hold the rows' own ``keys`` and ``values`` already. ``sinks`` (heads,)."""
        ...


class Attention(Protocol):
    copies_context: bool

    def of_step(self, step: DeviceStep) -> Attend:
        """Prepares a step once for all layers."""
        ...


class TorchAttention:
    copies_context = True

    def __init__(
        self,
        window: int | None,
        dtype: torch.dtype,
        soft_cap: float | None = None,
        *,
        is_chunked: bool = False,
    ) -> None:
        """``is_chunked``: a row sees its chunk of ``window`` tokens, not the last ``window``."""
        self.window = window
        self.is_chunked = is_chunked
        self.dtype = dtype
        self.soft_cap = soft_cap

    def of_step(self, step: DeviceStep) -> Attend:
        return TorchAttend(step, self)


class TorchAttend:
    def __init__(self, step: DeviceStep, attention: TorchAttention) -> None:
        self._step, self._soft_cap = step, attention.soft_cap
        given = step, attention.dtype, attention.window
        self._decoding = DecodeContext(*given, is_chunked=attention.is_chunked)
        self._prompts = [
            (query, prefill_mask(query, *given, is_chunked=attention.is_chunked))
            for query in step.prompts
        ]

    def __call__(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor | None,
        values: torch.Tensor | None,
        layer_kv: LayerKV,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        first = self._step.host.num_decode_rows
        parts = [self._decoded(queries[:first], layer_kv, sinks)] if first else []
        for query, mask in self._prompts:
            assert keys is not None and values is not None, "torch's rotation gives them"
            rows = slice(query.first_row, query.last_row)
            own = queries[rows], keys[rows], values[rows]
            parts.append(self._prefilled(*own, layer_kv, query, mask, sinks))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decoded(
        self, queries: torch.Tensor, layer_kv: LayerKV, sinks: torch.Tensor | None
    ) -> torch.Tensor:
        num_kv_heads = layer_kv.entries.shape[2]
        grouped = queries.view(len(queries), num_kv_heads, -1, queries.shape[2])
        if sinks is not None:
            sinks = sinks.view(1, num_kv_heads, -1)

        def attend(rows: slice, context: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            keys, values = context.permute(2, 0, 3, 1, 4)
            return _attend(grouped[rows], keys, values, mask, self._soft_cap, sinks)

        return self._decoding.attended(layer_kv, attend).flatten(1)

    def _prefilled(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        layer_kv: LayerKV,
        query: Query,
        mask: torch.Tensor | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """The query's own keys and values come from blocks too where those are rounded: a row must
        not depend on how a prompt was cut."""
        if query.start > 0 or layer_kv.entries.dtype != queries.dtype:
            size = self._step.host.block_tokens
            first = 0 if mask is None else query.end - mask.shape[-1]
            held = slice(first // size, num_blocks(query.end, size))
            block_ids = self._step.block_table[query.sequence][held]
            gathered = layer_kv.gather(block_ids, size, queries.dtype)
            keys, values = gathered[: query.end - first].unbind(1)
        queries, keys, values = (
            heads.transpose(0, 1).unsqueeze(0) for heads in (queries, keys, values)
        )
        if sinks is not None:
            sinks = sinks.view(1, -1, 1)
        attended = _attend(queries, keys, values, mask, self._soft_cap, sinks)
        return attended.squeeze(0).transpose(0, 1).flatten(1)


class DecodeContext:
    """What decode rows see in every layer. As many rows run at once as ``MOST_GATHERED_BYTES``
    allows: one long context beside many short ones must not take rows times its length."""

    def __init__(
        self,
        step: DeviceStep,
        dtype: torch.dtype,
        window: int | None = None,
        *,
        is_chunked: bool = False,
    ) -> None:
        self._block_ids, self._block_tokens = decode_blocks(step), step.host.block_tokens
        self._num_tokens = self._block_ids.shape[1] * self._block_tokens
        self._positions = step.positions[: len(self._block_ids)]
        self._dtype, self._window, self._is_chunked = dtype, window, is_chunked
        self._of_all_rows: ContextMask | None = None

    def attended(
        self,
        layer_kv: LayerKV,
        attend: Callable[[slice, torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """``attend``: some rows, with their context (num_rows, num_tokens, 2, kv_heads, head_dim)
        and what is added to their scores."""
        row_bytes, num_rows = self._num_tokens * gathered_bytes(layer_kv), len(self._block_ids)
        at_once = max(1, MOST_GATHERED_BYTES // row_bytes)
        starts = range(0, num_rows, at_once)
        parts = [self._part(layer_kv, slice(at, at + at_once), attend) for at in starts]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _part(
        self,
        layer_kv: LayerKV,
        rows: slice,
        attend: Callable[[slice, torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        block_ids, mask = self._block_ids[rows], self._mask(rows)
        gathered = layer_kv.gather(block_ids.flatten(), self._block_tokens, self._dtype)
        mask.clear(gathered)
        return attend(rows, gathered.view(len(block_ids), -1, *gathered.shape[1:]), mask.added)

    def _mask(self, rows: slice) -> ContextMask:
        """Kept from layer to layer where all rows run at once."""
        if rows.stop - rows.start < len(self._positions):
            return self._mask_of(self._positions[rows])
        if self._of_all_rows is None:
            self._of_all_rows = self._mask_of(self._positions)
        return self._of_all_rows

    def _mask_of(self, positions: torch.Tensor) -> ContextMask:
        context = torch.arange(self._num_tokens, device=positions.device)
        rows = positions.unsqueeze(1)
        hidden, added = _hidden(rows, rows, context, self._window, self._dtype, self._is_chunked)
        flat, is_cpu = hidden.flatten(), positions.device.type == "cpu"
        return ContextMask(
            added=added[:, None, None],
            hidden=flat.nonzero().squeeze(1) if is_cpu else flat.view(-1, 1, 1, 1),
        )


def decode_blocks(step: DeviceStep) -> torch.Tensor:
    """(num_decode_rows, num_context_blocks), no wider than their contexts need."""
    host = step.host
    longest = int(host.context_lens[: host.num_decodes].max(initial=0))
    table = step.block_table[:, : num_blocks(longest, host.block_tokens)]
    return table.index_select(0, step.sequences[: host.num_decode_rows])


def gathered_bytes(layer_kv: LayerKV) -> int:
    """A token's codes are held as codes, as float32, and multiplied."""
    numbers = layer_kv.entries[0].numel()
    return numbers * (layer_kv.entries.itemsize if layer_kv.scales is None else 9)


def _attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    soft_cap: float | None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """(sequences, heads, rows, head_dim); ``mask`` is added to scores, ``None``: causal."""
    if sinks is not None:
        assert soft_cap is None, "no family has both"
        return attend_with_sinks(queries, keys, values, mask, sinks)
    num_groups = queries.shape[1] // keys.shape[1]
    if soft_cap is None:
        return scaled_dot_product_attention(
            queries, keys, values, mask, is_causal=mask is None, enable_gqa=num_groups > 1
        )
    keys, values = (heads.repeat_interleave(num_groups, dim=1) for heads in (keys, values))
    scores = queries @ keys.transpose(2, 3) * queries.shape[-1] ** -0.5
    scores = torch.tanh(scores / soft_cap) * soft_cap
    if mask is None:
        hidden = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    else:
        scores = scores + mask
    return scores.softmax(dim=-1, dtype=torch.float32).to(values.dtype) @ values


def attend_with_sinks(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    sinks: torch.Tensor,
) -> torch.Tensor:
    """``sinks``: of ``queries``' shape without the last axis, or broadcast to it. A sink is a key
    before the others, and every head is widened: there its key is 1, and a query holds its score.

        queries  [ q ........ | sink / scale  0 ... ]
        keys     [ 0 ........ |      1        0 ... ]    the sink's
                 [ k ........ |      0        0 ... ]    the context's
    """
    num_rows, width = queries.shape[2], queries.shape[3]
    scale = width**-0.5
    if mask is None:
        square = torch.zeros(num_rows, num_rows, dtype=queries.dtype, device=queries.device)
        hidden = torch.ones_like(square, dtype=torch.bool).triu(1)
        mask = square.masked_fill_(hidden, float("-inf"))
    queries, keys, values = (pad(heads, (0, SINK_FEATURES)) for heads in (queries, keys, values))
    queries[..., width] = sinks / scale
    keys, values = (pad(heads, (0, 0, 1, 0)) for heads in (keys, values))
    keys[:, :, 0, width] = 1.0
    attended = scaled_dot_product_attention(
        queries,
        keys,
        values,
        pad(mask, (1, 0)),
        enable_gqa=queries.shape[1] > keys.shape[1],
        scale=scale,
    )
    return attended[..., :width]


@dataclass(frozen=True, slots=True)
class ContextMask:
    added: torch.Tensor
    """(num_rows, 1, 1, num_context) of the activations' dtype: 0, or -inf where hidden."""
    hidden: torch.Tensor
    """Indices on a CPU; else, to wait for nothing, bool (num_rows * num_context, 1, 1, 1)."""

    def clear(self, slots: torch.Tensor) -> None:
        """Zeroes hidden slots in place: (num_rows * num_context, 2, kv_heads, head_dim). A weight
        of 0 is not enough: they hold other sequences' values, and 0 times NaN is NaN."""
        if self.hidden.dtype == torch.bool:
            slots.masked_fill_(self.hidden, 0)
        else:
            slots.index_fill_(0, self.hidden, 0)


def _hidden(
    rows: torch.Tensor,
    last: torch.Tensor,
    context: torch.Tensor,
    window: int | None,
    dtype: torch.dtype,
    is_chunked: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(num_rows, num_context) each: whether a position is hidden, and 0 or -inf. ``rows`` and
    ``last`` (num_rows, 1): their positions, and the last ones that they see."""
    hidden = context > last
    if window is not None:
        first = rows // window * window if is_chunked else rows - window + 1
        hidden |= context < first
    added = torch.zeros(hidden.shape, dtype=dtype, device=rows.device)
    return hidden, added.masked_fill_(hidden, float("-inf"))


def prefill_mask(
    query: Query,
    step: DeviceStep,
    dtype: torch.dtype,
    window: int | None = None,
    *,
    is_chunked: bool = False,
) -> torch.Tensor | None:
    """(num_tokens, num_context), 0 or -inf; ``None``: plain causal, from the sequence's start. With
    a window or chunks the context begins with the block of the first token seen: earlier blocks may
    belong to another sequence."""
    last_seen, device, size = step.host.last_seen, step.positions.device, step.host.block_tokens
    is_short = window is None or query.end <= window
    if query.start == 0 and is_short and last_seen is None:
        return None
    first = 0
    if window is not None:
        oldest = query.start // window * window if is_chunked else query.start - window + 1
        first = max(0, oldest) // size * size
    last = rows = torch.arange(query.start, query.end, device=device).unsqueeze(1)
    if last_seen is not None:
        of_query = torch.from_numpy(last_seen[query.first_row : query.last_row])
        last = of_query.to(device, torch.int64).unsqueeze(1)
    context = torch.arange(first, query.end, device=device)
    return _hidden(rows, last, context, window, dtype, is_chunked)[1]
