"""Computes what each layer costs from a config and its tensors. Counts bytes as preflight does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import cast, get_args

from inference.loading.costs.model_costs import Kind, KindBytes, LayerCost, ModelCosts
from inference.loading.costs.stored_tensors import StoredTensor
from inference.loading.preflight import (
    CARD_BYTES_PER_WEIGHT,
    PREFILL_TOKENS_PER_STEP,
    LargestStep,
    memory_need,
)
from inference.models.cache.kv_format import KVFormat, cache_layout, kv_bytes_of_layer
from inference.models.config import ModelConfig
from inference.models.layers.configs import state_bytes

DENSE_BYTES: dict[Kind, int] = {"cpu": 4, "cuda": 2}
"""What dense weights and activations are kept in: float32, and bfloat16."""
AUTOMATIC_KV: dict[Kind, KVFormat] = {"cpu": "bf16", "cuda": "bf16"}
"""The format of a load with ``kv_dtype`` auto. Processors with VNNI take half of it."""
IN_LAYER = re.compile(r"model\.layers\.(\d+)\.")
HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"


def model_costs(
    config: ModelConfig,
    tensors: Iterable[StoredTensor],
    *,
    kv_dtype: str = "auto",
    max_sequences: int = 256,
    max_context_tokens: int | None = None,
) -> ModelCosts:
    """``tensors``: all that the model computes with. ``kv_dtype``, ``max_sequences``,
    ``max_context_tokens``: as the load is asked for."""
    by_layer: dict[int, list[StoredTensor]] = {}
    outer: list[StoredTensor] = []
    for tensor in tensors:
        match = IN_LAYER.match(tensor.name)
        # A layer beyond the last one is a predictor's.
        is_inner = match is not None and int(match[1]) < config.num_layers
        (by_layer.setdefault(int(match[1]), []) if match and is_inner else outer).append(tensor)
    weigh = _weigher(config)
    head = [one for one in outer if one.name == HEAD] or [one for one in outer if one.name == TABLE]
    step = _by_kind(lambda kind: _step_bytes(config, kind, max_sequences))
    experts = config.experts
    return ModelCosts(
        layers=tuple(
            _layer_cost(config, index, by_layer.get(index, []), kv_dtype, weigh)
            for index in range(config.num_layers)
        ),
        outer_bytes=weigh(outer) + KindBytes(config.kept_rows_bytes, config.kept_rows_bytes),
        head_bytes=weigh(head),
        num_head_weights=_num_elements(head),
        hidden_size=config.hidden_size,
        active_share=1.0 if experts is None else experts.experts_per_token / experts.num_experts,
        step_bytes=step,
        context_tokens=min(config.max_positions, max_context_tokens or config.max_positions),
    )


Weigh = Callable[[list[StoredTensor]], KindBytes]


def _layer_cost(
    config: ModelConfig, index: int, tensors: list[StoredTensor], kv_dtype: str, weigh: Weigh
) -> LayerCost:
    experts = [one for one in tensors if one.role == "experts"]
    others = [one for one in tensors if one.role != "experts"]
    layout = cache_layout(config)
    has_state = index in layout.state_layers and layout.state is not None
    return LayerCost(
        weight_bytes=weigh(others),
        expert_bytes=weigh(experts),
        num_weights=_num_elements(others),
        num_expert_weights=_num_elements(experts),
        kv_token_bytes=_by_kind(
            lambda kind: kv_bytes_of_layer(config, index, _kv_format(kv_dtype, kind))
        ),
        state_bytes=state_bytes(layout.state) if has_state and layout.state is not None else 0,
    )


def _weigher(config: ModelConfig) -> Weigh:
    """Layers are mostly alike: each kind of layer is weighed once."""
    known: dict[tuple[tuple[str, str, int], ...], KindBytes] = {}

    def weigh(tensors: list[StoredTensor]) -> KindBytes:
        key = tuple(sorted((one.role, one.format, one.num_elements) for one in tensors))
        if key not in known:
            known[key] = _by_kind(lambda kind: _weight_bytes(config, tensors, kind))
        return known[key]

    return weigh


def _weight_bytes(config: ModelConfig, tensors: list[StoredTensor], kind: Kind) -> int:
    packed = [
        (one.format, one.num_elements)
        for one in tensors
        if kind == "cuda" and one.role == "experts" and one.format in CARD_BYTES_PER_WEIGHT
    ]
    rest = [
        (one.format, one.num_elements)
        for one in tensors
        if not packed or one.role != "experts" or one.format not in CARD_BYTES_PER_WEIGHT
    ]
    return memory_need(
        config,
        rest,
        DENSE_BYTES[kind],
        kv_format=AUTOMATIC_KV[kind],
        is_native=kind == "cpu",
        packed_experts=packed,
        has_packed_kernels=kind == "cuda",
    ).weight_bytes


def _step_bytes(config: ModelConfig, kind: Kind, max_sequences: int) -> int:
    step = LargestStep(prompt_rows=PREFILL_TOKENS_PER_STEP[kind], decode_rows=max_sequences)
    return memory_need(
        config, (), DENSE_BYTES[kind], kv_format=AUTOMATIC_KV[kind], largest_step=step
    ).step_bytes


def _kv_format(kv_dtype: str, kind: Kind) -> KVFormat:
    return AUTOMATIC_KV[kind] if kv_dtype == "auto" else cast(KVFormat, kv_dtype)


def _num_elements(tensors: Iterable[StoredTensor]) -> int:
    return sum(tensor.num_elements for tensor in tensors)


def _by_kind(count: Callable[[Kind], int]) -> KindBytes:
    return KindBytes(**{kind: count(kind) for kind in get_args(Kind)})
