"""Which of a model's weights an adapter may change, by what its family declares. No tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping

from inference.models.config import ModelConfig
from inference.models.families.registry import family_of

ADAPTABLE_ROLES = frozenset({"column", "whole_column", "row", "state"})
"""The roles that adapters may change. Those of ``state`` are matrices: a Gated DeltaNet's
projections of its decays and betas."""
PLANNED_RANK = 16
"""The rank of the adapters that a card keeps room for. One of four times that takes the room of
four."""
_IN_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


def adaptable_shapes(config: ModelConfig) -> Mapping[str, tuple[int, int]]:
    """(out_features, in_features) of each weight that adapters may change, by Hugging Face's name
    without ``.weight``: the projections of layers. Experts' are not among them, nor is anything
    else of a layer's MLP that has experts."""
    found: dict[str, tuple[int, int]] = {}
    for tensor in family_of(config).tensors(config):
        name, _, kind = tensor.name.rpartition(".")
        match = _IN_LAYER.fullmatch(name)
        if match is None or kind != "weight" or tensor.role not in ADAPTABLE_ROLES:
            continue
        if int(match[1]) >= config.num_layers:
            continue  # a layer that makes drafts, and answers nothing
        is_sparse = config.mlp_kinds[int(match[1])] == "sparse"
        if len(tensor.shape) == 2 and not (is_sparse and match[2].startswith("mlp.")):
            found[name] = tensor.shape[0], tensor.shape[1]
    return found


def planned_adapter_bytes(config: ModelConfig, bytes_per_number: int) -> int:
    """What one adapter takes that changes all that adapters may change, at ``PLANNED_RANK``."""
    features = sum(sum(shape) for shape in adaptable_shapes(config).values())
    return PLANNED_RANK * features * bytes_per_number
