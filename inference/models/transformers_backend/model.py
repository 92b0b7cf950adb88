"""A decoder of transformers behind our paged attention, for what no family here computes:
projections are not fused or packed, and no kernel of ours runs it.

Its modules hand rotated heads to an attention function registered by name. Rows of a step come as
one batch of one:

    module ─▶ paged_attention ─▶ AttentionStep, which all layers share ─▶ LayerKV, torch's attention

Imports transformers when a model is built: that takes seconds, and few engines need it.
"""

from __future__ import annotations

import inspect as signatures
import math
from typing import Any

import torch
from torch.nn.functional import pad

from inference.models.config import ModelConfig
from inference.models.device_step import DeviceStep
from inference.models.errors import UnsupportedModuleError
from inference.models.kv_format import KVFormat
from inference.models.layers.attention import Attend, TorchAttention
from inference.models.paged_kv import LayerKV, PagedKV
from inference.models.step_input import StepInput, check_positions
from inference.models.transformers_backend.hub_module import (
    ModuleBackend,
    load_module,
    without_weights,
)
from inference.models.transformers_backend.inspection import AttentionCall, inspect
from inference.models.weight_source import WeightSource

PAGED = "helexa_paged"
"""transformers makes no masks for this name."""
LAYER = "helexa_layer"
"""Attribute of an attention module: the ``TransformersModel``, and the module's call."""


class AttentionStep:
    def __init__(self, step: DeviceStep, kv: PagedKV, dtype: torch.dtype) -> None:
        self._step, self._kv, self._dtype = step, kv, dtype
        self._attention: dict[tuple[int | None, float | None], Attend] = {}

    def attend(
        self,
        call: AttentionCall,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """(1, heads, num_rows, features) each -> (1, num_rows, heads, value features)."""
        layer_kv = self._kv.layers[call.kv_layer]
        assert isinstance(layer_kv, LayerKV)
        queries, keys, values = (one[0].transpose(0, 1) for one in (queries, keys, values))
        if call.value_dim < call.head_dim:
            # Blocks hold heads of one width: nothing is added up in features of zeros.
            values = pad(values, (0, call.head_dim - call.value_dim))
        if call.kv_layer == call.layer:
            layer_kv.write(self._step.slots, keys, values)
        kind = call.window, call.soft_cap
        if kind not in self._attention:
            attention = TorchAttention(call.window, self._dtype, call.soft_cap)
            self._attention[kind] = attention.of_step(self._step)
        scale = call.scale * math.sqrt(call.head_dim)
        queries = queries if scale == 1.0 else queries * scale
        attended = self._attention[kind](queries, keys, values, layer_kv, sinks)
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
    """Scale, window and soft cap were recorded when the model was built."""
    model, call = getattr(module, LAYER)
    step: AttentionStep = model.step
    return step.attend(call, query, key, value, s_aux), None


def register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(PAGED, paged_attention)


class TransformersModel(ModuleBackend):
    def __init__(
        self, config: ModelConfig, weights: WeightSource, context_tokens: int, kv_format: KVFormat
    ) -> None:
        """Raises ``UnsupportedModuleError`` and ``MissingWeightsError``."""
        super().__init__(config, weights, context_tokens, kv_format)
        calls = inspect_config(config)
        _check_layout(config, calls)
        register()
        self.step: AttentionStep | None = None
        self._module, self._passed_over = load_module(config, weights, PAGED)
        for call in calls:
            setattr(self._module.get_submodule(call.module), LAYER, (self, call))
        parameters = signatures.signature(self._module.forward).parameters
        self._keeps_logits = "logits_to_keep" in parameters

    @property
    def execution(self) -> str:
        return (
            f"transformers' {type(self._module).__name__} behind paged attention: slower than a "
            f"family that this build computes itself{self._passed_over}"
        )

    def new_kv(self, num_blocks: int, block_tokens: int, num_state_slots: int = 0) -> PagedKV:
        return PagedKV(
            self.config, num_blocks, block_tokens, self.kv_format, self.device, num_state_slots
        )

    @torch.inference_mode()
    def forward(self, step: StepInput, kv: PagedKV) -> torch.Tensor:
        """All rows are one row of transformers': only attention looks from one to another."""
        check_positions(step.longest_context, self._num_positions)
        on_device = DeviceStep.of(step, self.device)
        rows = on_device.logit_rows
        kept = {"logits_to_keep": rows} if self._keeps_logits and rows is not None else {}
        self.step = AttentionStep(on_device, kv, self.dtype)
        try:
            found = self._module(
                input_ids=on_device.token_ids[None],
                position_ids=on_device.positions[None],
                use_cache=False,
                **kept,
            )
        finally:
            self.step = None
        logits: torch.Tensor = found.logits[0]
        if rows is not None and not kept:
            logits = logits.index_select(0, rows)
        return logits.float()


def checked_config(config: ModelConfig) -> ModelConfig:
    """Raises ``UnsupportedModuleError``."""
    _check_layout(config, inspect_config(config))
    return config


def inspect_config(config: ModelConfig) -> list[AttentionCall]:
    return inspect(without_weights(config))


def _check_layout(config: ModelConfig, calls: list[AttentionCall]) -> None:
    for call, shape in zip(calls, config.kv_shapes, strict=True):
        planned = config.num_heads, *shape
        kept = call.num_kv_heads if call.kv_layer == call.layer else 0
        found = call.num_heads, kept, call.head_dim
        if found != planned:
            raise UnsupportedModuleError(
                f"transformers' {call.module} has {_in_words(found)}; config.json was read as "
                f"{_in_words(planned)} in every layer"
            )


def _in_words(heads: tuple[int, int, int]) -> str:
    return f"{heads[0]} heads over {heads[1]} of keys and values, {heads[2]} wide"
