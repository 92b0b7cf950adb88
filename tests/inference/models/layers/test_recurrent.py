"""Gated DeltaNet, Mamba-2's scan and the causal convolution: a span at once is as row by row, at
every cut and at extremes. That rows are as transformers computes them is tried by models of these
layers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from inference.models.layers.delta_net import (
    DeltaInputs,
    delta_chunks,
    delta_step,
    gates,
    unit_length,
)
from inference.models.layers.mamba import ScanInputs, scan_chunks, scan_step
from tests.cases import each_case

Inputs = tuple[torch.Tensor, ...]
Kind = tuple[Callable[..., Inputs], Callable[..., Inputs], Callable[..., Any], tuple[int, ...]]
DELTA: Kind = delta_chunks, delta_step, DeltaInputs, (4, 8, 6)
SCAN: Kind = scan_chunks, scan_step, ScanInputs, (4, 6, 8)
"""A span, a step, their inputs, and the shape of a state."""


def normal(num_tokens: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(num_tokens + sum(shape))
    return torch.randn(num_tokens, *shape, generator=generator)


def delta_inputs(num_tokens: int, forgets: float = 1.0) -> Inputs:
    keys = unit_length(normal(num_tokens, 2, 8))
    queries = unit_length(normal(num_tokens, 2, 8).flip(0)) * 8**-0.5
    decay = -forgets * normal(num_tokens, 4).sigmoid()
    return queries, keys, normal(num_tokens, 4, 6), decay, normal(num_tokens, 4).sigmoid()


def scan_inputs(num_tokens: int, rate: float = 1.0) -> Inputs:
    steps, keys = normal(num_tokens, 4).exp(), normal(num_tokens, 2, 8)
    values = normal(num_tokens, 4, 6) * steps.unsqueeze(-1)
    return values, keys, keys.flip(0), -rate * torch.linspace(0.1, 2.0, 4) * steps


REPEATED = tuple(tensor[:1].expand(512, *tensor.shape[1:]) for tensor in delta_inputs(2)[:3])
REPEATED += torch.full((512, 4), -1e-6), torch.full((512, 4), 1 - 1e-6)
EDGES = [[1], [2], [63], [64], [65], [1, 150], [64, 150], [70, 150], [63, 65, 66, 149, 150]]


@each_case(
    ("kind", "inputs", "ends"),
    [
        *((DELTA, delta_inputs(ends[-1]), ends) for ends in EDGES),
        (DELTA, REPEATED, [512]),  # a prompt that repeats one token
        (DELTA, delta_inputs(130, forgets=40.0), [130]),
        *((SCAN, scan_inputs(ends[-1]), ends) for ends in EDGES),
        (SCAN, scan_inputs(150, rate=1e4), [150]),  # heads that forget at once
    ],
)
def test_a_span_is_as_its_rows_one_by_one(kind: Kind, inputs: Inputs, ends: list[int]) -> None:
    """A prompt may be cut anywhere, and each state is left as it was. The rows of a step are
    sequences of their own."""
    chunks, step, inputs_of, shape = kind
    found, wanted, state, states = [], [], torch.zeros(shape), torch.zeros(2, *shape)
    for start, end in pairwise([0, *ends]):
        before = state.clone()
        read, following = chunks(inputs_of(*(part[start:end] for part in inputs)), state)
        assert torch.equal(state, before) and read.isfinite().all()
        found.append(read)
        state = following
    for row in range(ends[-1]):
        other = (row * 7) % ends[-1]
        before = states.clone()
        read, following = step(inputs_of(*(part[[row, other]] for part in inputs)), states)
        assert torch.equal(states, before)
        wanted.append(read[:1])
        states = following
    torch.testing.assert_close(torch.cat(found), torch.cat(wanted), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state, states[0], rtol=1e-4, atol=1e-4)


def test_gates_are_float32_whatever_the_activations() -> None:
    a = torch.tensor([[30.0, -4.0]], dtype=torch.bfloat16)
    b = torch.tensor([[2.0, -2.0]], dtype=torch.bfloat16)
    log_decay, beta = gates(a, b, torch.tensor([16.0, 0.5]), torch.tensor([1.0, 1.0]))
    softplus = torch.tensor([31.0, -3.0]).exp().log1p()
    torch.testing.assert_close(log_decay[0], -torch.tensor([16.0, 0.5]) * softplus)
    torch.testing.assert_close(beta[0], torch.tensor([2.0, -2.0]).sigmoid())
