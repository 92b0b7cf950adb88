"""A decoder of transformers behind our paged attention: the ``Model`` of ``registry`` for what no
family here computes. Slower than a family's own layers: its projections are not fused or packed,
and no kernel of ours runs it.

Imports transformers when a model is built: that takes seconds, and few engines need it.
"""

from __future__ import annotations

import inspect as signatures
from typing import Any, NoReturn

import torch

from inference.models.adapter import AdapterWeights
from inference.models.batch import Batch
from inference.models.config import ModelConfig
from inference.models.errors import (
    MissingWeightsError,
    UnsupportedAdapterError,
    UnsupportedModuleError,
)
from inference.models.foreign.attention import (
    LAYER,
    PAGED,
    CurrentStep,
    ForeignLayer,
    ForeignStep,
    register,
)
from inference.models.foreign.inspection import AttentionCall, inspect
from inference.models.kv_format import KVFormat
from inference.models.paged_kv import PagedKV
from inference.models.rope import POSITIONS_MULTIPLE, check_positions
from inference.models.weights import WeightSource


class ForeignModel:
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
        self._module = _load(config, weights)
        for call in calls:
            layer = ForeignLayer(call, self._current)
            setattr(self._module.get_submodule(call.module), LAYER, layer)
        parameters = signatures.signature(self._module.forward).parameters
        self._keeps_logits = "logits_to_keep" in parameters

    @property
    def execution(self) -> str:
        """In words."""
        return (
            f"transformers' {type(self._module).__name__} behind paged attention: slower than a "
            "family that this build computes itself"
        )

    def new_kv(self, num_blocks: int, block_tokens: int, num_state_slots: int = 0) -> PagedKV:
        return PagedKV(
            self.config, num_blocks, block_tokens, self.kv_format, self.device, num_state_slots
        )

    def prepare_adapter(self, weights: AdapterWeights) -> NoReturn:
        """Raises ``UnsupportedAdapterError``."""
        raise UnsupportedAdapterError(
            f"{self.config.architecture} is computed by transformers' own module, whose "
            "projections take no adapters here"
        )

    @torch.inference_mode()
    def forward(self, batch: Batch, kv: PagedKV) -> torch.Tensor:
        """All rows as one row of transformers': nothing but attention looks from one to another.
        Raises ``PositionError``."""
        check_positions(batch.end(kv.block_tokens), self._num_positions)
        rows = batch.logit_rows
        kept = {"logits_to_keep": rows} if self._keeps_logits and rows is not None else {}
        self._current.step = ForeignStep(batch, kv, self.dtype)
        try:
            found = self._module(
                input_ids=batch.token_ids[None],
                position_ids=batch.positions[None],
                use_cache=False,
                **kept,
            )
        finally:
            self._current.step = None
        logits: torch.Tensor = found.logits[0]
        if rows is not None and not kept:
            logits = logits.index_select(0, rows)
        return logits.float()


def inspect_config(config: ModelConfig) -> list[AttentionCall]:
    """How each layer attends, from config.json alone. Raises ``UnsupportedModuleError``."""
    with torch.device("meta"):
        # In bfloat16: what multiplies experts all at once takes no other dtype there.
        module = _class_of(config)._from_config(_hub_config(config), dtype=torch.bfloat16)
    return inspect(module.eval())


def _class_of(config: ModelConfig) -> Any:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    return MODEL_FOR_CAUSAL_LM_MAPPING[type(_hub_config(config))]


def _hub_config(config: ModelConfig) -> Any:
    from transformers import CONFIG_MAPPING

    assert config.module_config is not None, "its family keeps it"
    return CONFIG_MAPPING[config.architecture].from_dict(dict(config.module_config))


def _check_layout(config: ModelConfig, calls: list[AttentionCall]) -> None:
    """Memory was planned by what config.json says. Raises ``UnsupportedModuleError``."""
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


def _load(config: ModelConfig, weights: WeightSource) -> Any:
    """transformers knows what its own files' tensors are called, and which of them it fuses."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    # Loops over experts: it multiplies in every dtype.
    experts = {"experts_implementation": "eager"} if weights.device.type == "cpu" else {}
    model, told = _class_of(config).from_pretrained(
        None,
        config=_hub_config(config),
        state_dict=weights.all_tensors(),
        dtype=weights.activation_dtype,
        attn_implementation=PAGED,
        output_loading_info=True,
        **experts,
    )
    missing = sorted(told["missing_keys"])
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise MissingWeightsError(f"the weight files lack {missing[0]}{others}")
    return model.eval().to(weights.device)
