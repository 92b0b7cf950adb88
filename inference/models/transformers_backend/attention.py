"""Attention of transformers' modules over blocks of ours.

transformers lets an attention function be registered by name; its modules then hand that function
their rotated heads. Rows of a step come as one batch of one:

    module ─▶ paged_attention ─▶ the module's PagedAttentionLayer ─▶ LayerKV, torch's attention
                                        └─▶ AttentionStep: the step, and what its layers share
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from inference.models.cache.paged_kv import LayerKV, PagedKV
from inference.models.device_step import DeviceStep
from inference.models.layers.attention import Attend, TorchAttention
from inference.models.transformers_backend.inspection import AttentionCall

PAGED = "helexa_paged"
"""What the attention function is registered as. transformers makes no masks for it."""
LAYER = "helexa_layer"
"""Attribute of an attention module: its ``PagedAttentionLayer``."""


class AttentionStep:
    """One step's rows. Layers with the same window share the prepared masks and indices."""

    def __init__(self, step: DeviceStep, kv: PagedKV, dtype: torch.dtype) -> None:
        self.step = step
        self.kv = kv
        self._dtype = dtype
        self._attention: dict[tuple[int | None, float | None], Attend] = {}

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
            layer_kv.write(self.step.slots, keys, values)
        kind = call.window, call.soft_cap
        if kind not in self._attention:
            attention = TorchAttention(call.window, self._dtype, call.soft_cap)
            self._attention[kind] = attention.of_step(self.step)
        return self._attention[kind](queries, keys, values, layer_kv, sinks)


@dataclass(slots=True)
class CurrentStep:
    """What the layers of a model are running."""

    step: AttentionStep | None = None


@dataclass(frozen=True, slots=True)
class PagedAttentionLayer:
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
    """Implements transformers' attention interface. Scale, window and soft cap were recorded when
    the model was built, and do not change from step to step."""
    layer: PagedAttentionLayer = getattr(module, LAYER)
    return layer.attend(query, key, value, s_aux), None


def register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(PAGED, paged_attention)
