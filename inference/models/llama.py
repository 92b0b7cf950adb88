"""The llama family over paged KV: llama 1-3.x, smollm, mistral, qwen2, qwen3.

Pre-norm decoder with rotary embedding, grouped-query attention and a gated SiLU MLP; what differs
between relatives is in ``ModelConfig``, not in copies of this file.

    hidden ─▶ norm ─▶ qkv ─▶ (norm q, k) ─▶ rotate ─▶ write KV ─▶ attend ─▶ output ─▶ + ─▶
           ─▶ norm ─▶ gate|up ─▶ silu(gate) * up ─▶ down ─▶ +

``decode`` and ``prefill`` differ in the projections' kernels and in how they attend, nothing else.
Knows nothing of sequences, scheduling or files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import rms_norm

from inference.models.attention import (
    Attention,
    DecodeAttention,
    PrefillAttention,
    TorchAttention,
)
from inference.models.batch import DecodeBatch, PrefillBatch
from inference.models.config import ModelConfig
from inference.models.kv_format import KVFormat
from inference.models.paged_kv import LayerKV, PagedKV
from inference.models.pointwise import Pointwise, TorchPointwise
from inference.models.rope import RopeTable, check_positions, rope_table, rotate
from inference.models.weights import Linear, WeightSource


@dataclass(frozen=True)
class LlamaLayer:
    """One decoder layer's weights."""

    input_norm: torch.Tensor
    qkv: Linear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Rows:
    """Between layers: ``hidden`` (rows, features), and what is still to be added to it, which the
    norm that follows does in the same go."""

    hidden: torch.Tensor
    added: torch.Tensor | None = None

    def norm(
        self, weight: torch.Tensor, eps: float, pointwise: Pointwise
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum, and its norm."""
        return pointwise.add_and_norm(self.hidden, self.added, weight, eps)

    def select(self, rows: torch.Tensor) -> Rows:
        added = None if self.added is None else self.added.index_select(0, rows)
        return Rows(self.hidden.index_select(0, rows), added)


@dataclass(frozen=True, slots=True)
class RotatedHeads:
    """(num_rows, heads, head_dim) queries, and keys and values with heads of their own: ``None``
    from a kernel that only writes those."""

    queries: torch.Tensor
    keys: torch.Tensor | None = None
    values: torch.Tensor | None = None


class Rotation(Protocol):
    def __call__(self, layer: LlamaLayer, qkv: torch.Tensor, layer_kv: LayerKV) -> RotatedHeads:
        """Of a layer's projection, (num_rows, features). Writes the rows' rotated keys, and
        values."""
        ...


RotationFactory = Callable[[ModelConfig, RopeTable, DecodeBatch | PrefillBatch], Rotation]
"""Prepares a step once for all layers."""


def load_layer(config: ModelConfig, weights: WeightSource, index: int) -> LlamaLayer:
    prefix = f"model.layers.{index}"
    heads = f"{prefix}.self_attn"
    return LlamaLayer(
        input_norm=weights.tensor(f"{prefix}.input_layernorm.weight"),
        qkv=weights.linear(f"{heads}.q_proj", f"{heads}.k_proj", f"{heads}.v_proj"),
        query_norm=weights.tensor(f"{heads}.q_norm.weight") if config.qk_norm else None,
        key_norm=weights.tensor(f"{heads}.k_norm.weight") if config.qk_norm else None,
        output=weights.linear(f"{heads}.o_proj"),
        mlp_norm=weights.tensor(f"{prefix}.post_attention_layernorm.weight"),
        gate_up=weights.linear(f"{prefix}.mlp.gate_proj", f"{prefix}.mlp.up_proj"),
        down=weights.linear(f"{prefix}.mlp.down_proj"),
    )


class LlamaModel:
    def __init__(
        self, config: ModelConfig, weights: WeightSource, context_tokens: int, kv_format: KVFormat
    ) -> None:
        self.config = config
        self.dtype = weights.activation_dtype
        self.device = weights.device
        self.kv_format = kv_format
        self._embedding = weights.embedding("model.embed_tokens")
        self.layers = [load_layer(config, weights, i) for i in range(config.num_layers)]
        self._final_norm = weights.tensor("model.norm.weight")
        self._head = (
            self._embedding.as_linear() if config.tie_embeddings else weights.linear("lm_head")
        )
        self.rope = rope_table(config, context_tokens, weights.device)
        self.attention: Attention = TorchAttention(config.sliding_window, self.dtype)
        self.rotation: RotationFactory = torch_rotation
        self.pointwise: Pointwise = TorchPointwise()
        """All three may be replaced, before the first step, by what is faster on the device."""

    @property
    def copies_context(self) -> bool:
        return self.attention.copies_context

    def new_kv(self, num_blocks: int, block_tokens: int) -> PagedKV:
        return PagedKV(self.config, num_blocks, block_tokens, self.kv_format, self.device)

    def decode(self, batch: DecodeBatch, kv: PagedKV) -> torch.Tensor:
        """Write the rows' keys and values, return their logits: (num_rows, vocab_size) float32.
        Raises ``PositionError``."""
        check_positions(batch.end(kv.block_tokens), self.rope.num_positions)
        rotate = self.rotation(self.config, self.rope, batch)
        attend = self.attention.for_decode(batch, kv.block_tokens)
        rows = Rows(self._embedding.lookup(batch.token_ids))
        for layer, layer_kv in zip(self.layers, kv.layers, strict=True):
            rows = decode_layer(self.config, layer, rows, layer_kv, rotate, attend, self.pointwise)
        return self._logits(rows)

    def prefill(self, batch: PrefillBatch, kv: PagedKV) -> torch.Tensor:
        """Write all rows' keys and values, return ``logit_rows``' logits:
        (num_logit_rows, vocab_size) float32. Raises ``PositionError``."""
        check_positions(batch.end, self.rope.num_positions)
        rotate = self.rotation(self.config, self.rope, batch)
        attend = self.attention.for_prefill(batch, kv.block_tokens)
        rows = Rows(self._embedding.lookup(batch.token_ids))
        for layer, layer_kv in zip(self.layers, kv.layers, strict=True):
            rows = prefill_layer(self.config, layer, rows, layer_kv, rotate, attend, self.pointwise)
        return self._logits(rows.select(batch.logit_rows))

    def _logits(self, rows: Rows) -> torch.Tensor:
        _, normed = rows.norm(self._final_norm, self.config.rms_norm_eps, self.pointwise)
        return self._head.decode(normed).float()


def decode_layer(
    config: ModelConfig,
    layer: LlamaLayer,
    rows: Rows,
    layer_kv: LayerKV,
    rotate_and_write: Rotation,
    attend: DecodeAttention,
    pointwise: Pointwise,
) -> Rows:
    """One layer over single-token rows."""
    hidden, normed = rows.norm(layer.input_norm, config.rms_norm_eps, pointwise)
    heads = rotate_and_write(layer, layer.qkv.decode(normed), layer_kv)
    rows = Rows(hidden, layer.output.decode(attend(heads.queries, layer_kv)))
    hidden, normed = rows.norm(layer.mlp_norm, config.rms_norm_eps, pointwise)
    return Rows(hidden, layer.down.decode(pointwise.gate(layer.gate_up.decode(normed))))


def prefill_layer(
    config: ModelConfig,
    layer: LlamaLayer,
    rows: Rows,
    layer_kv: LayerKV,
    rotate_and_write: Rotation,
    attend: PrefillAttention,
    pointwise: Pointwise,
) -> Rows:
    """One layer over prompt rows."""
    hidden, normed = rows.norm(layer.input_norm, config.rms_norm_eps, pointwise)
    heads = rotate_and_write(layer, layer.qkv.prefill(normed), layer_kv)
    attended = attend(heads.queries, heads.keys, heads.values, layer_kv)
    rows = Rows(hidden, layer.output.prefill(attended))
    hidden, normed = rows.norm(layer.mlp_norm, config.rms_norm_eps, pointwise)
    return Rows(hidden, layer.down.prefill(pointwise.gate(layer.gate_up.prefill(normed))))


def torch_rotation(
    config: ModelConfig, rope: RopeTable, batch: DecodeBatch | PrefillBatch
) -> Rotation:
    """For all layers of a step."""
    angles = rope.at(batch.positions)

    def rotate_and_write(layer: LlamaLayer, qkv: torch.Tensor, layer_kv: LayerKV) -> RotatedHeads:
        queries, keys, values = _project(config, layer, qkv, angles)
        layer_kv.write(batch.slots, keys, values)
        return RotatedHeads(queries, keys, values)

    return rotate_and_write


def _project(
    config: ModelConfig,
    layer: LlamaLayer,
    qkv: torch.Tensor,
    angles: tuple[torch.Tensor, torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rotated queries and keys, and values: each (num_tokens, heads, head_dim).

    qkv heads   [ queries .......... | keys ........ | values ...... ]
                0            num_heads       + num_kv_heads  + num_kv_heads
    """
    num_heads, num_kv_heads = config.num_heads, config.num_kv_heads
    heads = qkv.view(qkv.shape[0], num_heads + 2 * num_kv_heads, config.head_dim)
    rotated, values = torch.split(heads, [num_heads + num_kv_heads, num_kv_heads], dim=1)
    if layer.query_norm is not None and layer.key_norm is not None:
        shape, eps = layer.query_norm.shape, config.rms_norm_eps
        queries, keys = torch.split(rotated, [num_heads, num_kv_heads], dim=1)
        queries = rms_norm(queries, shape, layer.query_norm, eps)
        keys = rms_norm(keys, shape, layer.key_norm, eps)
        rotated = torch.cat((queries, keys), dim=1)
    cosines, sines = angles
    rotated = rotate(rotated, cosines, sines).to(qkv.dtype)
    queries, keys = torch.split(rotated, [num_heads, num_kv_heads], dim=1)
    return queries, keys, values
