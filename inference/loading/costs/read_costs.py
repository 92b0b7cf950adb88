"""Costs of a model's layers, read from its config.json or the headers of its GGUF files: the
tensors that it computes with, as its files hold them or a load quantises them, and the bytes that
preflight counts for them. Reads no weights, imports no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast, get_args

from inference.loading.config.hub_config import parse_config, read_json
from inference.loading.costs.model_costs import Kind, ModelCosts
from inference.loading.preflight import (
    CARD_BYTES_PER_WEIGHT,
    PREFILL_TOKENS_PER_STEP,
    LargestStep,
    memory_need,
)
from inference.loading.sources.files import ModelFiles
from inference.models.cache.kv_format import KVFormat, cache_layout, kv_bytes_of_layer
from inference.models.config import ModelConfig
from inference.models.families.family import Family
from inference.models.families.hub_config import Json
from inference.models.families.quantization import read_quantization
from inference.models.families.registry import check_gguf_architecture, family_of
from inference.models.families.roles import MATRIX_ROLES, TABLE_ROLES, Role, TensorRole
from inference.models.families.tower import TOWER
from inference.models.families.tower_names import model_name
from inference.models.layer_configs import state_bytes
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadSourceError
from inference.protocol.load_progress import KindBytes, LayerCost

if TYPE_CHECKING:
    from inference.loading.gguf.header import GGUFHeader


DENSE_BYTES: dict[Kind, int] = {"cpu": 4, "cuda": 2}
"""Formats of dense weights and activations: float32, and bfloat16."""
AUTOMATIC_KV: dict[Kind, KVFormat] = {"cpu": "bf16", "cuda": "bf16"}
"""The format of a load with ``kv_dtype`` auto. Processors with VNNI take half of it."""
IN_LAYER = re.compile(r"model\.layers\.(\d+)\.")
DENSE = "dense"
BITS = {4: "INT4", 8: "INT8"}
FP8_CODES = "F8_E4M3"
HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    name: str
    role: Role
    num_elements: int
    format: str
    """The format by ``inference.loading.preflight``'s name; ``dense``: 16 or 32 bits."""


Weigh = Callable[[list[StoredTensor]], KindBytes]


def read_costs(files: ModelFiles, spec: LoadSpec) -> ModelCosts:
    """``files``: of GGUF files the headers are enough, of safetensors config.json. ``spec``: how
    the load would quantise, and what it bounds. Raises ``LoadError``."""
    if files.is_gguf:
        # Hosts without neurons may lack the package gguf.
        from inference.loading.gguf.config import read_gguf_model
        from inference.loading.gguf.header import read_header

        # A module of transformers would have to be imported, with torch.
        metadata = read_header(files.weights[0]).metadata
        family = check_gguf_architecture(str(metadata.get("general.architecture")))
        _refuse_module(family, family.name)
        model = read_gguf_model(files, _without_pixels)
        config, tensors = model.config, gguf_tensors(model.config, model.header)
    else:
        hub = read_json(files.directory / "config.json")
        config = parse_config(hub, {})
        tensors = config_tensors(config, hub, spec.quantization)
    return model_costs(
        config,
        tensors,
        kv_dtype=spec.kv_dtype,
        max_sequences=spec.max_concurrent_sequences,
        max_context_tokens=spec.max_context_tokens,
    )


def _without_pixels(config: ModelConfig) -> ModelConfig:
    """The device bounds the size of images, and a plan has none yet."""
    if config.vision is None:
        return config
    return replace(config, vision=replace(config.vision, min_pixels=0, max_pixels=0))


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


def _layer_cost(
    config: ModelConfig, index: int, tensors: list[StoredTensor], kv_dtype: str, weigh: Weigh
) -> LayerCost:
    experts = [one for one in tensors if one.role == "experts"]
    others = [one for one in tensors if one.role != "experts"]
    layout = cache_layout(config)
    state = layout.state if index in layout.state_layers else None
    return LayerCost(
        weight_bytes=weigh(others),
        expert_bytes=weigh(experts),
        num_weights=_num_elements(others),
        num_expert_weights=_num_elements(experts),
        kv_token_bytes=_by_kind(
            lambda kind: kv_bytes_of_layer(config, index, _kv_format(kv_dtype, kind))
        ),
        state_bytes=0 if state is None else state_bytes(state),
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
    packed: list[tuple[str, int]] = []
    others: list[tuple[str, int]] = []
    for one in tensors:
        is_expert = kind == "cuda" and one.role == "experts"
        is_packed = is_expert and one.format in CARD_BYTES_PER_WEIGHT
        (packed if is_packed else others).append((one.format, one.num_elements))
    return memory_need(
        config,
        others,
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


def config_tensors(config: ModelConfig, hub: Json, quantization: str) -> Iterator[StoredTensor]:
    """Yields the tensors that safetensors files of this config store. ``hub``: config.json, parsed.
    ``quantization``: the load's setting. Raises ``BadSourceError`` where the config does not name
    the tensors, and ``BadFileError``."""
    format_of, family = _format_of(hub, quantization), family_of(config)
    _refuse_module(family, config.architecture)
    for tensor in family.tensors(config):
        yield StoredTensor(
            name=tensor.name,
            role=tensor.role,
            num_elements=math.prod(tensor.shape),
            format=format_of(tensor),
        )


def gguf_tensors(config: ModelConfig, header: GGUFHeader) -> Iterator[StoredTensor]:
    family = family_of(config)
    roles = {tensor.name: tensor.role for tensor in family.tensors(config)}
    for info in header.tensors.values():
        name = model_name(info.name, family, config)
        if name is None:
            continue
        is_tower = name.startswith(TOWER)
        yield StoredTensor(
            name=name,
            role="tower" if is_tower else roles.get(name, "norm"),
            num_elements=info.num_elements,
            format=DENSE if is_tower else info.type.name,
        )


def _refuse_module(family: Family, name: str) -> None:
    if family.uses_transformers:
        raise BadSourceError(
            f"the transformers backend computes {name}, and what its layers take is known only "
            "once it is loaded"
        )


def _format_of(hub: Json, quantization: str) -> Callable[[TensorRole], str]:
    packed = read_quantization(hub)
    if packed is not None:
        is_fp8 = packed.method == "fp8" or packed.has_floats
        stored = FP8_CODES if is_fp8 else BITS[packed.bits]
        return lambda tensor: stored if tensor.role in MATRIX_ROLES else DENSE
    if hub.get("model_type") == "gpt_oss":  # its files hold the experts in MXFP4
        return lambda tensor: "MXFP4" if tensor.role == "experts" else DENSE
    if quantization in ("auto", "none"):
        return lambda tensor: DENSE
    tables = DENSE if quantization == "fp8" else "q8"
    return lambda tensor: (
        quantization
        if tensor.role in MATRIX_ROLES
        else tables
        if tensor.role in TABLE_ROLES
        else DENSE
    )
