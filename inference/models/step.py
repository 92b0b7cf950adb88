"""One forward pass: what all of its layers share.

Operators (of a model, once) ─▶ Step (of a batch) ─▶ rotation and attention of each kind of layer
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from inference.models.adapter import StepAdapters
from inference.models.batch import Batch
from inference.models.cache.paged_kv import LayerKV
from inference.models.config import ATTENTION_KINDS, MixerKind, ModelConfig
from inference.models.layers.attention import (
    Attention,
    DecodeAttention,
    PrefillAttention,
    TorchAttention,
)
from inference.models.layers.pointwise import Pointwise, TorchPointwise
from inference.models.layers.rope import RopeTable, growth_table, rope_table
from inference.models.layers.rotation import (
    AttentionWeights,
    Rotation,
    RotationFactory,
    torch_rotation,
)
from inference.models.weights.weight_source import Phased


class Operators:
    """What a model's layers run on: torch's operators. Each may be replaced, before the first step,
    by what is faster on the device."""

    def __init__(
        self, config: ModelConfig, context_tokens: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        """``dtype`` is the activations'."""
        kinds = [kind for kind in dict.fromkeys(config.mixer_kinds) if kind in ATTENTION_KINDS]
        self.config = config
        self.ropes: dict[MixerKind, RopeTable] = {
            kind: rope_table(config, context_tokens, device, kind) for kind in kinds
        }
        self.attention: dict[MixerKind, Attention] = {
            kind: TorchAttention(config.window_of(kind), dtype, config.attention_soft_cap)
            for kind in kinds
        }
        self.rotation: RotationFactory = torch_rotation
        self.pointwise: Pointwise = TorchPointwise()
        self.num_positions = min(
            (rope.num_positions for rope in self.ropes.values()), default=context_tokens
        )
        self.growth = growth_table(config, self.num_positions, device)

    @property
    def copies_context(self) -> bool:
        return any(attention.copies_context for attention in self.attention.values())

    def step(self, batch: Batch, block_tokens: int) -> Step:
        return Step(self, batch, block_tokens)


class Step:
    """What the layers of one batch share, prepared when the first of them asks."""

    def __init__(self, operators: Operators, batch: Batch, block_tokens: int) -> None:
        self.batch = batch
        self.pointwise = operators.pointwise
        self._operators = operators
        self._block_tokens = block_tokens
        self._attention: dict[MixerKind, StepAttention] = {}
        self._num_decodes = batch.num_decodes
        self._is_mixed = bool(self._num_decodes and batch.spans)
        self._adapters = (
            None if batch.adapters is None else StepAdapters(batch, batch.token_ids.device)
        )

    def product(self, linear: Phased, x: torch.Tensor) -> torch.Tensor:
        """(num_rows, in_features) -> (num_rows, out_features). A row's phase chooses the kernel;
        one that serves both phases runs once over all rows. What rows' adapters say is in it."""
        if self._adapters is not None:
            return self._adapters.add_to(self._product(linear, x), linear, x)
        return self._product(linear, x)

    def _product(self, linear: Phased, x: torch.Tensor) -> torch.Tensor:
        num_decodes = self._num_decodes
        if not num_decodes:
            return linear.prefill(x)
        if not self._is_mixed or linear.is_phaseless:
            return linear.decode(x)
        return torch.cat((linear.decode(x[:num_decodes]), linear.prefill(x[num_decodes:])))

    def attention(self, kind: MixerKind) -> StepAttention:
        found = self._attention.get(kind)
        if found is None:
            found = self._attention[kind] = self._prepare(kind)
        return found

    def _prepare(self, kind: MixerKind) -> StepAttention:
        operators, batch, size = self._operators, self.batch, self._block_tokens
        attention = operators.attention[kind]
        return StepAttention(
            num_decodes=self._num_decodes,
            rotate=operators.rotation(operators.config, operators.ropes[kind], batch),
            decode=attention.for_decode(batch.decodes, size) if batch.num_decodes else None,
            prefill=attention.for_prefill(batch.prompts, size) if batch.spans else None,
            growth=_growth(operators.growth, batch),
        )


def _growth(table: torch.Tensor | None, batch: Batch) -> torch.Tensor | None:
    return None if table is None else table.index_select(0, batch.positions)[:, None, None]


@dataclass(frozen=True, slots=True)
class StepAttention:
    """Attention of one kind over a step's rows."""

    num_decodes: int
    rotate: Rotation
    decode: DecodeAttention | None
    prefill: PrefillAttention | None
    growth: torch.Tensor | None = None
    """(num_rows, 1, 1), of queries."""

    def __call__(
        self, weights: AttentionWeights, qkv: torch.Tensor, layer_kv: LayerKV
    ) -> torch.Tensor:
        """Attends by a layer's projection (num_rows, features), whose keys and values are written
        -> (num_rows, heads * head_dim)."""
        heads = self.rotate(weights, qkv, layer_kv)
        queries, keys, values = heads.queries, heads.keys, heads.values
        if weights.query_scale != 1.0:
            queries = queries * weights.query_scale
        if self.growth is not None:
            queries = queries * self.growth.to(queries.dtype)
        return attend_rows(self, queries, keys, values, layer_kv, weights.sinks)


class PhasedAttention(Protocol):
    """Attention over a step's rows; ``None`` for a phase that none of them is in."""

    @property
    def num_decodes(self) -> int: ...

    @property
    def decode(self) -> DecodeAttention | None: ...

    @property
    def prefill(self) -> PrefillAttention | None: ...


def attend_rows(
    attention: PhasedAttention,
    queries: torch.Tensor,
    keys: torch.Tensor | None,
    values: torch.Tensor | None,
    layer_kv: LayerKV,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """A step's rows (num_rows, heads, head_dim), whose keys and values are written, each in its
    phase -> (num_rows, heads * head_dim). ``sinks`` (heads,): see ``attend_with_sinks``."""
    decode, prefill = attention.decode, attention.prefill
    if prefill is None:
        assert decode is not None, "a step has rows"
        return decode(queries, layer_kv, sinks)
    if decode is None:
        return prefill(queries, keys, values, layer_kv, sinks)
    first = attention.num_decodes
    decoded = decode(queries[:first], layer_kv, sinks)
    keys, values = (None if own is None else own[first:] for own in (keys, values))
    return torch.cat((decoded, prefill(queries[first:], keys, values, layer_kv, sinks)))
