"""The tensors that a model computes with, as its files hold them or a load quantises them: names,
roles, sizes and formats, from config.json or from a GGUF header. Reads no weights, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inference.models.config import ModelConfig
from inference.models.families.family import Family
from inference.models.families.hub_config import Json
from inference.models.families.quantization import read_quantization
from inference.models.families.registry import family_of
from inference.models.families.roles import MATRIX_ROLES, TABLE_ROLES, Role, TensorRole
from inference.models.families.tower import TOWER
from inference.models.families.tower_gguf import model_name
from inference.protocol.load_errors import BadSourceError

if TYPE_CHECKING:
    from inference.loading.gguf.header import GGUFHeader

DENSE = "dense"
BITS = {4: "INT4", 8: "INT8"}
FP8_CODES = "F8_E4M3"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    name: str
    """Hugging Face's."""
    role: Role
    num_elements: int
    format: str
    """The format by ``inference.loading.preflight``'s name; ``dense``: 16 or 32 bits."""


def config_tensors(config: ModelConfig, hub: Json, quantization: str) -> Iterator[StoredTensor]:
    """Yields the tensors that safetensors files of this config store. ``hub``: config.json, parsed.
    ``quantization``: the load's setting. Raises ``BadSourceError`` where the config does not name
    the tensors, and ``BadFileError``."""
    format_of = _format_of(hub, quantization)
    for tensor in _family(config).tensors(config):
        yield StoredTensor(
            name=tensor.name,
            role=tensor.role,
            num_elements=math.prod(tensor.shape),
            format=format_of(tensor),
        )


def gguf_tensors(config: ModelConfig, header: GGUFHeader) -> Iterator[StoredTensor]:
    """Raises ``BadSourceError`` where transformers' own module computes the model."""
    family = _family(config)
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


def _family(config: ModelConfig) -> Family:
    family = family_of(config)
    if family.uses_transformers:
        raise BadSourceError(
            f"transformers' own module computes {config.architecture}, and what its layers take is "
            "known only once it is loaded"
        )
    return family


def _format_of(hub: Json, quantization: str) -> Callable[[TensorRole], str]:
    """The format of a tensor, by its role."""
    stored = _stored_format(hub)
    if stored is not None:
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


def _stored_format(hub: Json) -> str | None:
    """``None``: the files are dense, or name their formats by tensor alone."""
    quantization = read_quantization(hub)
    if quantization is None:
        return None
    if quantization.method == "fp8":
        return FP8_CODES
    if quantization.method in ("gptq", "awq"):
        return BITS[quantization.bits]
    weights = _compressed_weights(hub)
    return FP8_CODES if weights.get("type") == "float" else BITS[weights.get("num_bits", 8)]


def _compressed_weights(hub: Json) -> dict[str, Any]:
    """How the first group of compressed-tensors has its weights."""
    declared = hub.get("quantization_config") or hub.get("compression_config")
    if not declared:
        declared = (hub.get("text_config") or {}).get("quantization_config") or {}
    groups = declared.get("config_groups") or {}
    first: dict[str, Any] = next(iter(groups.values()), {})
    return first.get("weights") or {}
