"""Costs of a model's layers, from its config.json or the headers of its GGUF files, as preflight
counts them. Reads no weights, imports no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, cast, get_args

from inference.loading.formats import FP8_FILES, INT4, INT8, MXFP4
from inference.loading.hub_config import parse_config, read_json
from inference.loading.model_costs import Kind, ModelCosts
from inference.loading.preflight import PREFILL_TOKENS_PER_STEP, Kernels, Weight, step_bytes
from inference.loading.sources.files import ModelFiles
from inference.models.config import ModelConfig
from inference.models.families.family import Family, model_name
from inference.models.families.hub_config import Json
from inference.models.families.quantization import read_quantization
from inference.models.families.registry import check_gguf_architecture, family_of
from inference.models.families.roles import MATRIX_ROLES, TABLE_ROLES, TensorRole
from inference.models.families.tower import TOWER
from inference.models.kv_format import KVFormat, cache_layout, kv_bytes_of_layer
from inference.models.layer_configs import state_bytes
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadSourceError
from inference.protocol.load_report import KindBytes, LayerCost

if TYPE_CHECKING:
    from inference.loading.gguf.header import GGUFHeader

KERNELS: dict[Kind, Kernels] = {
    "cpu": Kernels(dense_bytes=4, is_native=True),
    "cuda": Kernels(dense_bytes=2, is_card=True, packs_experts=True, packs_projections=True),
}
AUTOMATIC_KV: KVFormat = "bf16"
"""The format of a load with ``kv_dtype`` auto. Processors with VNNI take half of it."""
IN_LAYER = re.compile(r"model\.layers\.(\d+)\.")
DENSE = "dense"
HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"


NamedWeight = tuple[str, Weight]


def read_costs(files: ModelFiles, spec: LoadSpec) -> ModelCosts:
    """``files``: GGUF headers or a config.json are enough. Raises ``LoadError``."""
    if files.is_gguf:
        # Hosts without neurons may lack the package gguf.
        from inference.loading.gguf.config import read_gguf_model
        from inference.loading.gguf.header import read_header

        # A module of transformers would have to be imported, with torch.
        architecture = read_header(files.weights[0]).architecture
        _refuse_module(check_gguf_architecture(architecture), architecture)
        model = read_gguf_model(files, _without_pixels)
        config, tensors = model.config, gguf_tensors(model.config, model.header)
    else:
        hub = read_json(files.directory / "config.json")
        config = parse_config(hub, {})
        tensors = config_tensors(config, hub, spec.quantization)
    return model_costs(config, tensors, spec)


def _without_pixels(config: ModelConfig) -> ModelConfig:
    """The device bounds the size of images, and a plan has none yet."""
    if config.vision is None:
        return config
    return replace(config, vision=replace(config.vision, min_pixels=0, max_pixels=0))


def model_costs(config: ModelConfig, tensors: Iterable[NamedWeight], spec: LoadSpec) -> ModelCosts:
    by_layer: list[list[Weight]] = [[] for _ in range(config.num_layers)]
    outer: dict[str, Weight] = {}
    for name, weight in tensors:
        match = IN_LAYER.match(name)
        # A layer beyond the last one is a predictor's.
        if match is not None and int(match[1]) < config.num_layers:
            by_layer[int(match[1])].append(weight)
        else:
            outer[name] = weight
    is_tied = HEAD not in outer
    head = [outer[name]._replace(role="head") for name in (HEAD, TABLE) if name in outer][:1]
    experts = config.experts
    return ModelCosts(
        layers=tuple(
            _layer_cost(config, index, weights, spec.kv_dtype)
            for index, weights in enumerate(by_layer)
        ),
        outer_bytes=_bytes(outer.values(), is_tied=is_tied)
        + KindBytes(config.kept_rows_bytes, config.kept_rows_bytes),
        head_bytes=_bytes(head),
        num_head_weights=_num_elements(head),
        hidden_size=config.hidden_size,
        active_share=1.0 if experts is None else experts.experts_per_token / experts.num_experts,
        step_bytes=_by_kind(
            lambda kind: step_bytes(
                config,
                KERNELS[kind].dense_bytes,
                prompt_rows=PREFILL_TOKENS_PER_STEP[kind],
                decode_rows=spec.max_concurrent_sequences,
            )
        ),
        context_tokens=min(config.max_positions, spec.max_context_tokens or config.max_positions),
    )


def _layer_cost(config: ModelConfig, index: int, weights: list[Weight], kv_dtype: str) -> LayerCost:
    experts = [one for one in weights if one.role == "experts"]
    others = [one for one in weights if one.role != "experts"]
    layout = cache_layout(config)
    state = layout.state if index in layout.state_layers else None
    kv_format = AUTOMATIC_KV if kv_dtype == "auto" else cast(KVFormat, kv_dtype)
    kv_bytes = kv_bytes_of_layer(config, index, kv_format)
    return LayerCost(
        weight_bytes=_bytes(others),
        expert_bytes=_bytes(experts),
        num_weights=_num_elements(others),
        num_expert_weights=_num_elements(experts),
        kv_token_bytes=KindBytes(kv_bytes, kv_bytes),
        state_bytes=0 if state is None else state_bytes(state),
    )


def _bytes(weights: Iterable[Weight], *, is_tied: bool = False) -> KindBytes:
    listed = list(weights)
    return _by_kind(lambda kind: KERNELS[kind].bytes_of(listed, is_tied=is_tied)[0])


def _num_elements(weights: Iterable[Weight]) -> int:
    return sum(weight.num_elements for weight in weights)


def _by_kind(count: Callable[[Kind], int]) -> KindBytes:
    return KindBytes(**{kind: count(kind) for kind in get_args(Kind)})


def config_tensors(config: ModelConfig, hub: Json, quantization: str) -> Iterator[NamedWeight]:
    """``hub``: config.json. Refuses models of the transformers backend."""
    format_of, family = _format_of(hub, quantization), family_of(config)
    _refuse_module(family, config.architecture)
    for tensor in family.tensors(config):
        weight = Weight(tensor.role, format_of(tensor), math.prod(tensor.shape))
        yield tensor.name, weight


def gguf_tensors(config: ModelConfig, header: GGUFHeader) -> Iterator[NamedWeight]:
    family = family_of(config)
    roles = {tensor.name: tensor.role for tensor in family.tensors(config)}
    for info in header.tensors.values():
        name = model_name(info.name, family, config)
        if name is not None:
            role = "tower" if name.startswith(TOWER) else roles.get(name)
            yield name, Weight(role, info.type.name, info.num_elements)


def _refuse_module(family: Family, name: str) -> None:
    if family.uses_transformers:
        raise BadSourceError(
            f"the transformers backend computes {name}, and what its layers take is known only "
            "once it is loaded"
        )


def _format_of(hub: Json, quantization: str) -> Callable[[TensorRole], str]:
    matrices, tables = DENSE, DENSE
    packed = read_quantization(hub)
    if packed is not None:
        is_fp8 = packed.method == "fp8" or packed.has_floats
        matrices = FP8_FILES if is_fp8 else {4: INT4, 8: INT8}[packed.bits]
    elif hub.get("model_type") == "gpt_oss":  # its files hold the experts alone in MXFP4
        return lambda tensor: MXFP4 if tensor.role == "experts" else DENSE
    elif quantization not in ("auto", "none"):
        matrices, tables = quantization, DENSE if quantization == "fp8" else "q8"
    formats = dict.fromkeys(MATRIX_ROLES, matrices) | dict.fromkeys(TABLE_ROLES, tables)
    return lambda tensor: formats.get(tensor.role, DENSE)
