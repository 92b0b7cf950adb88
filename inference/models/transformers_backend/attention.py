"""Attention of transformers' modules over blocks of ours.

transformers lets an attention function be registered by name; its modules then hand that function
their rotated heads. Rows of a step come as one batch of one:

    module ─▶ paged_attention ─▶ the module's ForeignLayer ─▶ LayerKV, torch's attention
                                        └─▶ ForeignStep: the batch, and what its layers share
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from inference.models.batch import Batch
from inference.models.cache.paged_kv import LayerKV, PagedKV
from inference.models.layers.attention import DecodeAttention, PrefillAttention, TorchAttention
from inference.models.step import attend_rows
from inference.models.transformers_backend.inspection import AttentionCall

PAGED = "helexa_paged"
"""What the attention function is registered as. transformers makes no masks for it."""
LAYER = "helexa_layer"
"""Attribute of an attention module: its ``ForeignLayer``."""


@dataclass(frozen=True, slots=True)
class _Phases:
    num_decodes: int
    decode: DecodeAttention | None
    prefill: PrefillAttention | None


class ForeignStep:
    """One batch's rows. Layers that see as far share what is prepared for them."""

    def __init__(self, batch: Batch, kv: PagedKV, dtype: torch.dtype) -> None:
        self.batch = batch
        self.kv = kv
        self._dtype = dtype
        self._phases: dict[tuple[int | None, float | None], _Phases] = {}

    def attend(
        self,
        call: AttentionCall,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        layer_kv: LayerKV,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        if call.kv_layer == call.layer:
            layer_kv.write(self.batch.slots, keys, values)
        kind = call.window, call.soft_cap
        if kind not in self._phases:
            self._phases[kind] = self._prepare(TorchAttention(call.window, self._dtype, kind[1]))
        return attend_rows(self._phases[kind], queries, keys, values, layer_kv, sinks)

    def _prepare(self, attention: TorchAttention) -> _Phases:
        batch, size = self.batch, self.kv.block_tokens
        return _Phases(
            num_decodes=batch.num_decodes,
            decode=attention.for_decode(batch.decodes, size) if batch.num_decodes else None,
            prefill=attention.for_prefill(batch.prompts, size) if batch.spans else None,
        )


@dataclass(slots=True)
class CurrentStep:
    """What the layers of a model are running."""

    step: ForeignStep | None = None


@dataclass(frozen=True, slots=True)
class ForeignLayer:
    call: AttentionCall
    current: CurrentStep

    def attend(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """(1, heads, num_rows, features) each -> (1, num_rows, heads, value features). ``sinks``
        (heads,)."""
        call, step = self.call, self.current.step
        assert step is not None, "the model's forward sets it"
        layer_kv = step.kv.layers[call.kv_layer]
        assert isinstance(layer_kv, LayerKV)
        rows = queries[0].transpose(0, 1)
        own_values = values[0].transpose(0, 1)
        if call.value_dim < call.head_dim:
            # Blocks hold heads of one width: nothing is added up in features of zeros.
            own_values = pad(own_values, (0, call.head_dim - call.value_dim))
        scale = call.scale * math.sqrt(call.head_dim)
        attended = step.attend(
            call,
            rows if scale == 1.0 else rows * scale,
            keys[0].transpose(0, 1),
            own_values,
            layer_kv,
            sinks,
        )
        heads = attended.view(1, -1, call.num_heads, call.head_dim)
        return heads[..., : call.value_dim]


def paged_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_: Any,
    s_aux: torch.Tensor | None = None,
    **__: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers' attention interface has it. What it says of scale, window and soft cap was
    found when the model was built, and does not change from step to step."""
    layer: ForeignLayer = getattr(module, LAYER)
    return layer.attend(query, key, value, s_aux), None


def register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(PAGED, paged_attention)
