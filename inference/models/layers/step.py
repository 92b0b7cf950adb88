"""The parts of one forward pass that all of its layers share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from inference.models.adapter import StepAdapters
from inference.models.config import ATTENTION_KINDS, MixerKind, ModelConfig
from inference.models.device_step import DeviceStep
from inference.models.layers.attention import Attend, Attention, TorchAttention
from inference.models.layers.latent_attention import LatentAttend
from inference.models.layers.norms import Pointwise, TorchPointwise
from inference.models.layers.rope import (
    RopeTable,
    Rotation,
    RotationFactory,
    growth_table,
    rope_table,
    torch_rotation,
)
from inference.models.layers.state_rows import ChunkStates, torch_chunk_states
from inference.models.paged_kv import LayerKV
from inference.models.weight_source import Phased

if TYPE_CHECKING:
    from inference.models.layers.attention_mixer import AttentionMixer


class Operators:
    """Each may be replaced, before the first step, by a faster one for the device."""

    def __init__(
        self, config: ModelConfig, context_tokens: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        kinds = [kind for kind in dict.fromkeys(config.mixer_kinds) if kind in ATTENTION_KINDS]
        self.config, self.dtype = config, dtype
        self.ropes: dict[MixerKind, RopeTable] = {
            kind: rope_table(config, context_tokens, device, kind) for kind in kinds
        }
        self.attention: dict[MixerKind, Attention] = {
            kind: TorchAttention(
                config.window_of(kind),
                dtype,
                config.attention_soft_cap,
                is_chunked=kind == "chunked",
            )
            for kind in kinds
            if kind != "latent"
        }
        self.rotation: RotationFactory = torch_rotation
        self.pointwise: Pointwise = TorchPointwise()
        self.chunk_states: ChunkStates = torch_chunk_states
        self.num_positions = min(
            (rope.num_positions for rope in self.ropes.values()), default=context_tokens
        )
        self.growth = growth_table(config, self.num_positions, device)

    @property
    def copies_context(self) -> bool:
        of_kinds = self.attention.values()
        return self.config.latent is not None or any(one.copies_context for one in of_kinds)

    def step(self, step: DeviceStep) -> Step:
        return Step(self, step)


class Step:
    """Masks, angles and adapters are prepared when the first layer asks."""

    def __init__(self, operators: Operators, step: DeviceStep) -> None:
        self.input = step
        self.pointwise = operators.pointwise
        self.chunk_states = operators.chunk_states
        self._operators = operators
        self._attention: dict[MixerKind, StepAttention] = {}
        self._latent: LatentAttend | None = None
        self._num_decode_rows = step.host.num_decode_rows
        self._is_mixed = bool(self._num_decode_rows and step.prompts)
        device = step.token_ids.device
        self._is_split = self._is_mixed and device.type == "cpu"
        has_adapters = step.host.adapters is not None
        self._adapters = StepAdapters(step.host, device) if has_adapters else None

    def product(self, linear: Phased, x: torch.Tensor) -> torch.Tensor:
        """(num_rows, in_features) -> (num_rows, out_features), with the rows' adapters applied."""
        if self._adapters is not None:
            return self._adapters.add_to(self._product(linear, x), linear, x)
        return self._product(linear, x)

    def _product(self, linear: Phased, x: torch.Tensor) -> torch.Tensor:
        """On a card a step of both phases runs all rows through the prompts' kernel, to read the
        weights once; on a CPU each row runs through its own phase's."""
        if not self._num_decode_rows:
            return linear.prefill(x)
        if self._is_split and not linear.is_phaseless:
            first = self._num_decode_rows
            return torch.cat((linear.decode(x[:first]), linear.prefill(x[first:])))
        return linear.prefill(x) if self._is_mixed else linear.decode(x)

    def attention(self, kind: MixerKind) -> StepAttention:
        found = self._attention.get(kind)
        if found is None:
            found = self._attention[kind] = self._prepare(kind)
        return found

    def latent(self) -> LatentAttend:
        if self._latent is None:
            operators = self._operators
            rope, dtype = operators.ropes["latent"], operators.dtype
            self._latent = LatentAttend(self.input, operators.config, rope, dtype)
        return self._latent

    def _prepare(self, kind: MixerKind) -> StepAttention:
        operators, step = self._operators, self.input
        return StepAttention(
            rotate=operators.rotation(operators.config, operators.ropes[kind], step),
            attend=operators.attention[kind].of_step(step),
            growth=_growth(operators.growth, step)
            if operators.config.grows_queries(kind)
            else None,
        )


def _growth(table: torch.Tensor | None, step: DeviceStep) -> torch.Tensor | None:
    return None if table is None else table.index_select(0, step.positions)[:, None, None]


@dataclass(frozen=True, slots=True)
class StepAttention:
    rotate: Rotation
    attend: Attend
    growth: torch.Tensor | None = None
    """(num_rows, 1, 1), of queries."""

    def __call__(
        self, weights: AttentionMixer, qkv: torch.Tensor, layer_kv: LayerKV
    ) -> torch.Tensor:
        """``qkv`` (num_rows, features) -> (num_rows, heads * head_dim). Writes keys and values."""
        heads = self.rotate(weights, qkv, layer_kv)
        queries, keys, values = heads.queries, heads.keys, heads.values
        if weights.query_scale != 1.0:
            queries = queries * weights.query_scale
        if self.growth is not None:
            queries = queries * self.growth.to(queries.dtype)
        return self.attend(queries, keys, values, layer_kv, weights.sinks)
