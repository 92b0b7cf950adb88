"""Attention by Triton kernels, which read the blocks where they lie.

The number of rows decides how many programs share a row's context, not how it is cut (see
``decode_kernel``). Every size that a captured step may see change is read on the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import triton

from inference.models.cuda.attention_kernels import decode_kernel, prefill_kernel, reduce_kernel
from inference.models.device_step import DeviceStep
from inference.models.kv_format import GROUP_FEATURES
from inference.models.layers.attention import MOST_PARTS, Attend
from inference.models.paged_kv import LayerKV
from inference.models.step_input import StepInput, on_device

SMALLEST_DOT = 16
"""Rows and features that ``tl.dot`` takes at least."""
PROGRAMS_PER_PROCESSOR = 4
"""Enough on each multiprocessor to keep the card's memory busy."""


@dataclass(frozen=True, slots=True)
class Tuning:
    decode_tile_tokens: int = 64
    decode_smallest_part: int = 64
    """A tile, so that as many programs as possible read a single row's context."""
    decode_most_parts: int = MOST_PARTS
    decode_warps: int = 4
    prefill_tile_rows: int = 64
    prefill_tile_tokens: int = 64
    prefill_warps: int = 4
    stages: int = 3


SMALL_TILE = 32
TUNINGS = (
    *(Tuning(stages=stages) for stages in (3, 2, 1)),
    Tuning(
        decode_tile_tokens=SMALL_TILE,
        prefill_tile_rows=SMALL_TILE,
        prefill_tile_tokens=SMALL_TILE,
        stages=1,
    ),
)
"""Each needs less shared memory; heads of 256 features need the last on cards of 64 KiB."""


class TritonAttention:
    copies_context = False

    def __init__(
        self,
        window: int | None,
        num_processors: int,
        tuning: Tuning,
        soft_cap: float | None = None,
        *,
        sees_ahead: bool = False,
        is_chunked: bool = False,
    ) -> None:
        """``sees_ahead``: rows may attend to later ones, as in ``StepInput.last_seen``. Then every
        prompt takes the kernel for it, so that no image waits for a compiler."""
        self._window = window or 0
        self._is_chunked = is_chunked
        self._soft_cap = soft_cap or 0.0
        self._num_processors = num_processors
        self._tuning = tuning
        self._sees_ahead = sees_ahead

    def of_step(self, step: DeviceStep) -> Attend:
        tiles = last_seen = None
        if step.prompts:
            found = np.array(row_tiles(step.host, self._tuning.prefill_tile_rows), dtype=np.int32)
            tiles = on_device(found, torch.int32, step.positions.device)
            if self._sees_ahead:
                host = step.host
                seen = host.positions if host.last_seen is None else host.last_seen
                last_seen = on_device(seen, torch.int32, step.positions.device)

        def attend(
            queries: torch.Tensor,
            keys: torch.Tensor | None,
            values: torch.Tensor | None,
            layer_kv: LayerKV,
            sinks: torch.Tensor | None = None,
        ) -> torch.Tensor:
            queries = queries.contiguous()
            attended = torch.empty_like(queries)
            if step.host.num_decode_rows:
                self._decode(queries, layer_kv, step, sinks, attended)
            if tiles is not None:
                self._prefill(queries, layer_kv, step, tiles, last_seen, sinks, attended)
            return attended.flatten(1)

        return attend

    def _decode(
        self,
        queries: torch.Tensor,
        layer_kv: LayerKV,
        step: DeviceStep,
        sinks: torch.Tensor | None,
        attended: torch.Tensor,
    ) -> None:
        num_rows = step.host.num_decode_rows
        _, num_heads, head_dim = queries.shape
        num_kv_heads, tuning = layer_kv.entries.shape[2], self._tuning
        padded_dim = padded(head_dim)
        parts = (num_rows, num_heads, tuning.decode_most_parts)
        sums = queries.new_empty((*parts, head_dim), dtype=torch.float32)
        softmax = queries.new_empty((*parts, 2), dtype=torch.float32)
        decode_kernel[(num_rows, num_kv_heads, self._num_sharing(num_rows * num_kv_heads))](
            queries,
            layer_kv.entries,
            layer_kv.scales,
            step.block_table,
            step.sequences,
            step.positions,
            sums,
            softmax,
            self._score_scale(head_dim),
            step.block_table.stride(0),
            num_kv_heads=num_kv_heads,
            group_heads=num_heads // num_kv_heads,
            padded_heads=padded(num_heads // num_kv_heads),
            head_dim=head_dim,
            padded_dim=padded_dim,
            block_tokens=step.host.block_tokens,
            tile_tokens=tuning.decode_tile_tokens,
            smallest_part=tuning.decode_smallest_part,
            most_parts=tuning.decode_most_parts,
            window=self._window,
            is_chunked=self._is_chunked,
            soft_cap=self._soft_cap,
            group_features=GROUP_FEATURES,
            has_scales=layer_kv.scales is not None,
            is_exact=is_exact(queries),
            num_warps=tuning.decode_warps,
            num_stages=tuning.stages,
        )
        reduce_kernel[(num_rows, num_heads)](
            sums,
            softmax,
            step.positions,
            sinks,
            attended,
            num_heads=num_heads,
            head_dim=head_dim,
            padded_dim=padded_dim,
            tile_tokens=tuning.decode_tile_tokens,
            smallest_part=tuning.decode_smallest_part,
            most_parts=tuning.decode_most_parts,
            window=self._window,
            is_chunked=self._is_chunked,
        )

    def _prefill(
        self,
        queries: torch.Tensor,
        layer_kv: LayerKV,
        step: DeviceStep,
        tiles: torch.Tensor,
        last_seen: torch.Tensor | None,
        sinks: torch.Tensor | None,
        attended: torch.Tensor,
    ) -> None:
        _, num_heads, head_dim = queries.shape
        prefill_kernel[(len(tiles), num_heads)](
            queries,
            layer_kv.entries,
            layer_kv.scales,
            step.block_table,
            tiles,
            last_seen,
            sinks,
            attended,
            self._score_scale(head_dim),
            step.block_table.stride(0),
            num_heads=num_heads,
            num_kv_heads=layer_kv.entries.shape[2],
            head_dim=head_dim,
            padded_dim=padded(head_dim),
            block_tokens=step.host.block_tokens,
            tile_rows=self._tuning.prefill_tile_rows,
            tile_tokens=self._tuning.prefill_tile_tokens,
            window=self._window,
            is_chunked=self._is_chunked,
            soft_cap=self._soft_cap,
            group_features=GROUP_FEATURES,
            has_scales=layer_kv.scales is not None,
            is_exact=is_exact(queries),
            num_warps=self._tuning.prefill_warps,
            num_stages=self._tuning.stages,
        )

    def _score_scale(self, head_dim: int) -> float:
        scale = math.log2(math.e) / math.sqrt(head_dim)
        return 2 * scale / self._soft_cap if self._soft_cap else scale

    def _num_sharing(self, num_programs: int) -> int:
        """The number of programs that share a row's context."""
        wanted = -(-PROGRAMS_PER_PROCESSOR * self._num_processors // num_programs)
        return min(max(wanted, 1), self._tuning.decode_most_parts)


def row_tiles(step: StepInput, tile_rows: int) -> list[tuple[int, int, int, int]]:
    """``prefill_kernel``'s tiles; the longest contexts first, because they take longest."""
    tiles = [
        (row, min(tile_rows, query.last_row - row), query.start + depth, query.sequence)
        for query in step.prompts
        for depth in range(0, query.last_row - query.first_row, tile_rows)
        for row in [query.first_row + depth]
    ]
    return sorted(tiles, key=lambda tile: -tile[2])


def is_exact(queries: torch.Tensor) -> bool:
    """Triton's interpreter cannot multiply bfloat16."""
    return queries.dtype == torch.float32 or queries.device.type == "cpu"


def padded(size: int) -> int:
    return max(SMALLEST_DOT, int(triton.next_power_of_2(size)))
