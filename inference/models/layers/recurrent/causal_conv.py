"""A causal convolution of each channel by itself, for rows that decode and for prompts. Float32.

A prompt may be cut anywhere: the last inputs of one part are the state that goes into the next. No
function changes its arguments.
"""

from __future__ import annotations

import torch


def conv_step(
    inputs: torch.Tensor, states: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token of each sequence: ``inputs`` (num_rows, channels), ``states`` (num_rows,
    kernel - 1, channels), ``weight`` (kernel, channels) -> (num_rows, channels), and the new
    states."""
    window = torch.cat((states, inputs.unsqueeze(1)), dim=1)
    return (window * weight).sum(dim=1), window[:, 1:]


def conv_span(
    inputs: torch.Tensor, state: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of one sequence: ``inputs`` (num_tokens, channels), ``state`` (kernel - 1, channels)
    -> (num_tokens, channels), and the new state."""
    num_tokens = len(inputs)
    window = torch.cat((state, inputs))
    summed = window[:num_tokens] * weight[0]
    for back in range(1, len(weight)):
        summed.addcmul_(window[back : back + num_tokens], weight[back])
    return summed, window[num_tokens:]
