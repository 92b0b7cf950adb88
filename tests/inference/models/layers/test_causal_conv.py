"""The causal convolution beside transformers', in parts and row by row."""

from __future__ import annotations

import torch
from transformers.models.qwen3_next.modeling_qwen3_next import causal_conv1d_fn

from inference.models.layers.state_rows import conv_span, conv_step
from tests.cases import each_case

CHANNELS, KERNEL = 5, 4


def _inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(9)
    inputs = torch.randn(20, CHANNELS, generator=generator)
    return inputs, torch.randn(KERNEL, CHANNELS, generator=generator)


def _expected(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return causal_conv1d_fn(inputs.t().unsqueeze(0), weight.t(), activation=None)[0].t()


@each_case("ends", [[20], [1, 2, 20], [3, 4, 20], [19, 20]])
def test_spans(ends: list[int]) -> None:
    inputs, weight = _inputs()
    state, start, parts = torch.zeros(KERNEL - 1, CHANNELS), 0, []
    for end in ends:
        before = state.clone()
        of_part, following = conv_span(inputs[start:end], state, weight)
        assert torch.equal(state, before)
        parts.append(of_part)
        start, state = end, following
    torch.testing.assert_close(torch.cat(parts), _expected(inputs, weight))
    assert torch.equal(state, inputs[-KERNEL + 1 :])


def test_steps() -> None:
    inputs, weight = _inputs()
    states, parts = torch.zeros(1, KERNEL - 1, CHANNELS), []
    for index in range(len(inputs)):
        of_token, states = conv_step(inputs[index : index + 1], states, weight)
        parts.append(of_token)
    torch.testing.assert_close(torch.cat(parts), _expected(inputs, weight))
    assert torch.equal(states[0], inputs[-KERNEL + 1 :])
