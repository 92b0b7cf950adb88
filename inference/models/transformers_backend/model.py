"""A decoder of transformers behind our paged attention: the ``Model`` of ``registry`` for what no
family here computes. Slower than a family's own layers: its projections are not fused or packed,
and no kernel of ours runs it.

Imports transformers when a model is built: that takes seconds, and few engines need it.
"""

from __future__ import annotations

import inspect as signatures
from typing import NoReturn

import torch

from inference.models.adapter import AdapterWeights
from inference.models.backend import PlainBackend
from inference.models.cache.kv_format import KVFormat
from inference.models.cache.paged_kv import PagedKV
from inference.models.config import ModelConfig
from inference.models.device_step import DeviceStep
from inference.models.errors import UnsupportedModuleError
from inference.models.layers.rope import POSITIONS_MULTIPLE
from inference.models.step_input import StepInput, check_positions
from inference.models.transformers_backend.attention import (
    LAYER,
    PAGED,
    AttentionStep,
    CurrentStep,
    PagedAttentionLayer,
    register,
)
from inference.models.transformers_backend.hub_module import (
    load_module,
    no_adapters,
    without_weights,
)
from inference.models.transformers_backend.inspection import AttentionCall, inspect
from inference.models.weights.weight_source import WeightSource


class TransformersModel(PlainBackend):
    copies_context = True

    def __init__(
        self, config: ModelConfig, weights: WeightSource, context_tokens: int, kv_format: KVFormat
    ) -> None:
        """Raises ``UnsupportedModuleError`` and ``MissingWeightsError``."""
        self.config = config
        self.dtype = weights.activation_dtype
        self.device = weights.device
        self.kv_format = kv_format
        self._num_positions = -(-context_tokens // POSITIONS_MULTIPLE) * POSITIONS_MULTIPLE
        calls = inspect_config(config)
        _check_layout(config, calls)
        register()
        self._current = CurrentStep()
        loaded = load_module(config, weights, PAGED)
        self._module, self._passed_over = loaded.module, loaded.passed_over
        for call in calls:
            layer = PagedAttentionLayer(call, self._current)
            setattr(self._module.get_submodule(call.module), LAYER, layer)
        parameters = signatures.signature(self._module.forward).parameters
        self._keeps_logits = "logits_to_keep" in parameters

    @property
    def execution(self) -> str:
        """Describes how the module runs."""
        return (
            f"transformers' {type(self._module).__name__} behind paged attention: slower than a "
            f"family that this build computes itself{self._passed_over}"
        )

    def new_kv(self, num_blocks: int, block_tokens: int, num_state_slots: int = 0) -> PagedKV:
        return PagedKV(
            self.config, num_blocks, block_tokens, self.kv_format, self.device, num_state_slots
        )

    def prepare_adapter(self, weights: AdapterWeights) -> NoReturn:
        """Raises ``UnsupportedAdapterError``."""
        raise no_adapters(self.config)

    @torch.inference_mode()
    def forward(self, step: StepInput, kv: PagedKV) -> torch.Tensor:
        """All rows as one row of transformers': nothing but attention looks from one to another.
        Raises ``PositionError``."""
        check_positions(step.longest_context, self._num_positions)
        on_device = DeviceStep.of(step, self.device)
        rows = on_device.logit_rows
        kept = {"logits_to_keep": rows} if self._keeps_logits and rows is not None else {}
        self._current.step = AttentionStep(on_device, kv, self.dtype)
        try:
            found = self._module(
                input_ids=on_device.token_ids[None],
                position_ids=on_device.positions[None],
                use_cache=False,
                **kept,
            )
        finally:
            self._current.step = None
        logits: torch.Tensor = found.logits[0]
        if rows is not None and not kept:
            logits = logits.index_select(0, rows)
        return logits.float()


def checked_config(config: ModelConfig) -> ModelConfig:
    """The same config, whose sizes the module confirms. Raises ``UnsupportedModuleError``."""
    _check_layout(config, inspect_config(config))
    return config


def inspect_config(config: ModelConfig) -> list[AttentionCall]:
    """How each layer attends, from config.json alone. Raises ``UnsupportedModuleError``."""
    return inspect(without_weights(config))


def _check_layout(config: ModelConfig, calls: list[AttentionCall]) -> None:
    """Checks that the module keeps what the memory plan assumes from config.json. Raises
    ``UnsupportedModuleError``."""
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
