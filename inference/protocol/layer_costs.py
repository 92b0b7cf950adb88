"""What a model's layers take, as it travels: kinds of layers once each, and which layer is of which
kind. ``inference.loading.costs.packed_costs`` makes plans' costs of it and back."""

from __future__ import annotations

import msgspec

MAX_LAYERS = 4096
MAX_KINDS = 256


class PackedBytes(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bytes of one thing on either kind of device."""

    cpu: int = 0
    cuda: int = 0


class PackedLayer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of ``inference.loading.costs.model_costs.LayerCost``."""

    weight_bytes: PackedBytes
    expert_bytes: PackedBytes = PackedBytes()
    num_weights: int = 0
    num_expert_weights: int = 0
    kv_token_bytes: PackedBytes = PackedBytes()
    state_bytes: int = 0


class PackedCosts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of ``inference.loading.costs.model_costs.ModelCosts``."""

    kinds: list[PackedLayer]
    layers: list[int]
    """Each layer's place in ``kinds``."""
    outer_bytes: PackedBytes
    head_bytes: PackedBytes
    num_head_weights: int
    hidden_size: int
    active_share: float = 1.0
    step_bytes: PackedBytes = PackedBytes()
    context_tokens: int = 0
