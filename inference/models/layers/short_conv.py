"""A gated convolution over a few rows as a layer's mixer (LFM2): a sequence keeps its last rows.

rows ─▶ before, after, values ─▶ before * values ─▶ convolution ─▶ * after ─▶ output
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inference.models.config import ModelConfig
from inference.models.layers.state_rows import (
    Inputs,
    conv_span,
    conv_step,
    conv_weight,
    through_states,
)
from inference.models.layers.step import Step
from inference.models.paged_kv import LayerState
from inference.models.weight_source import Linear, WeightSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvMixer:
    project: Linear
    """(…, 3 * channels): both gates, then the values."""
    conv_weight: torch.Tensor
    """(kernel, channels) float32."""
    conv_bias: torch.Tensor | None
    """(channels,) float32."""
    output: Linear

    def __call__(self, rows: torch.Tensor, step: Step, layer_cache: LayerState) -> torch.Tensor:
        """Writes the sequences' next states."""
        before, after, values = step.product(self.project, rows).chunk(3, dim=-1)
        inputs = ((before * values).float(),)
        mixed = through_states(
            inputs, step.input, layer_cache, decode=self._decode, prefill=self._prefill
        )
        if self.conv_bias is not None:
            mixed = mixed + self.conv_bias
        return step.product(self.output, after * mixed.to(rows.dtype))

    def _decode(self, inputs: Inputs, states: LayerState) -> tuple[torch.Tensor, LayerState]:
        mixed, conv = conv_step(inputs[0], states.conv, self.conv_weight)
        return mixed, LayerState(conv, states.recurrent)

    def _prefill(self, inputs: Inputs, state: LayerState) -> tuple[torch.Tensor, LayerState]:
        mixed, conv = conv_span(inputs[0], state.conv, self.conv_weight)
        return mixed, LayerState(conv, state.recurrent)


def load_short_conv(config: ModelConfig, weights: WeightSource, index: int) -> ShortConvMixer:
    shape, prefix = config.short_conv, f"model.layers.{index}.conv."
    assert shape is not None
    bias = weights.tensor(f"{prefix}conv.bias").float() if shape.has_bias else None
    return ShortConvMixer(
        project=weights.linear(f"{prefix}in_proj"),
        conv_weight=conv_weight(weights, f"{prefix}conv"),
        conv_bias=bias,
        output=weights.linear(f"{prefix}out_proj"),
    )
