"""Gated DeltaNet, Mamba-2's scan and the causal convolution beside transformers' functions:
in parts and row by row, at shapes of a few numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers.models.bamba.modeling_bamba import mamba2_chunk_scan
from transformers.models.qwen3_next.modeling_qwen3_next import (
    causal_conv1d_fn,
    torch_recurrent_gated_delta_rule,
)

from inference.models.layers.delta_net import (
    DeltaInputs,
    delta_chunks,
    delta_step,
    gates,
    unit_length,
)
from inference.models.layers.mamba import ScanInputs, scan_chunks, scan_step
from inference.models.layers.state_rows import conv_span, conv_step
from tests.cases import each_case

CHANNELS, KERNEL = 5, 4
KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 2, 4, 8, 6
DELTA_STATE = (VALUE_HEADS, KEY_DIM, VALUE_DIM)
HEADS, GROUPS, HEAD_DIM, STATE_SIZE = 4, 2, 6, 8
SCAN_STATE = (HEADS, HEAD_DIM, STATE_SIZE)
Scanned = tuple[torch.Tensor, torch.Tensor]


def in_parts(advance: Callable[..., Scanned], part: Any, state: torch.Tensor, ends: Any) -> Scanned:
    """Advances the state over the parts until each end; it leaves each state as it was."""
    start, read = 0, []
    for end in ends:
        before = state.clone()
        of_part, following = advance(part(start, end), state)
        assert torch.equal(state, before)
        read.append(of_part)
        start, state = end, following
    return torch.cat(read), state


def check_close(ours: Scanned, theirs: Scanned) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


class DeltaRaw:
    """Holds what transformers takes: queries and keys of any length, a batch of one."""

    def __init__(self, num_tokens: int, *, forgets: float = 1.0) -> None:
        generator = torch.Generator().manual_seed(num_tokens)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(1, num_tokens, *shape, generator=generator)

        self.queries, self.keys = normal(KEY_HEADS, KEY_DIM), normal(KEY_HEADS, KEY_DIM)
        self.values = normal(VALUE_HEADS, VALUE_DIM)
        self.log_decay = -forgets * torch.rand(1, num_tokens, VALUE_HEADS, generator=generator)
        self.beta = normal(VALUE_HEADS).sigmoid()

    def ours(self, start: int = 0, end: int | None = None) -> DeltaInputs:
        return DeltaInputs(
            queries=unit_length(self.queries[0, start:end]) * KEY_DIM**-0.5,
            keys=unit_length(self.keys[0, start:end]),
            values=self.values[0, start:end],
            log_decay=self.log_decay[0, start:end],
            beta=self.beta[0, start:end],
        )

    def theirs(self) -> Scanned:
        own = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
        given = {"g": self.log_decay, "beta": self.beta} | own
        read, state = torch_recurrent_gated_delta_rule(
            self.queries, self.keys, self.values, **given
        )
        return read[0], state[0]


def test_gates_are_float32_whatever_the_activations() -> None:
    a = torch.tensor([[30.0, -4.0]], dtype=torch.bfloat16)
    b = torch.tensor([[2.0, -2.0]], dtype=torch.bfloat16)
    log_decay, beta = gates(a, b, torch.tensor([16.0, 0.5]), torch.tensor([1.0, 1.0]))
    softplus = torch.tensor([31.0, -3.0]).exp().log1p()
    torch.testing.assert_close(log_decay[0], -torch.tensor([16.0, 0.5]) * softplus)
    torch.testing.assert_close(beta[0], torch.tensor([2.0, -2.0]).sigmoid())


class ScanRaw:
    def __init__(self, num_tokens: int, *, rate: float = 1.0) -> None:
        generator = torch.Generator().manual_seed(num_tokens)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(num_tokens, *shape, generator=generator)

        self.values, self.steps = normal(HEADS, HEAD_DIM), normal(HEADS).exp()
        self.keys, self.queries = normal(GROUPS, STATE_SIZE), normal(GROUPS, STATE_SIZE)
        self.rates = rate * torch.linspace(0.1, 2.0, HEADS)

    def ours(self, start: int = 0, end: int | None = None) -> ScanInputs:
        part, steps = slice(start, end), self.steps[start:end]
        values = self.values[part] * steps.unsqueeze(-1)
        return ScanInputs(values, self.keys[part], self.queries[part], -self.rates * steps)

    def theirs(self) -> Scanned:
        given = self.values[None], self.steps[None], -self.rates, self.keys[None]
        own = {"chunk_size": 16, "return_final_states": True}
        read, state = mamba2_chunk_scan(*given, self.queries[None], **own)
        return read[0], state[0]


EDGES = [[1], [2], [63], [64], [65], [1, 150], [64, 150], [63, 65, 66, 149, 150]]
REPEATED = DeltaRaw(512)
"""A prompt that repeats one token."""
for tensor in (REPEATED.queries, REPEATED.keys, REPEATED.values):
    tensor[:] = tensor[:, :1].clone()
REPEATED.log_decay[:], REPEATED.beta[:] = -1e-6, 1 - 1e-6


@each_case(
    ("raw", "ends"),
    [
        *((DeltaRaw(ends[-1]), ends) for ends in EDGES),
        (REPEATED, [512]),
        (DeltaRaw(130, forgets=40.0), [130]),
        *((ScanRaw(ends[-1]), ends) for ends in (*EDGES, [70, 150])),
        (ScanRaw(150, rate=1e4), [150]),  # heads that forget at once
    ],
)
def test_chunks(raw: DeltaRaw | ScanRaw, ends: list[int]) -> None:
    """A prompt may be cut anywhere."""
    is_delta = isinstance(raw, DeltaRaw)
    state = torch.zeros(DELTA_STATE if is_delta else SCAN_STATE)
    found = in_parts(delta_chunks if is_delta else scan_chunks, raw.ours, state, ends)
    assert found[0].isfinite().all() and found[1].isfinite().all()
    check_close(found, raw.theirs())


@each_case(
    ("step", "raw_of", "shape"),
    [(delta_step, DeltaRaw, DELTA_STATE), (scan_step, ScanRaw, SCAN_STATE)],
    ids=["delta", "scan"],
)
def test_steps_whose_rows_are_sequences_of_their_own(
    step: Callable[..., Scanned], raw_of: Callable[[int], Any], shape: tuple[int, ...]
) -> None:
    raw = raw_of(70)
    read, states = in_parts(step, raw.ours, torch.zeros(1, *shape), range(1, 71))
    check_close((read, states[0]), raw.theirs())
    raw = raw_of(5)
    states = torch.randn(5, *shape, generator=torch.Generator().manual_seed(3))
    before = states.clone()
    read, after = step(raw.ours(), states)
    assert torch.equal(states, before)
    for row in range(5):
        alone = step(raw.ours(row, row + 1), states[row : row + 1])
        check_close((read[row], after[row]), (alone[0][0], alone[1][0]))


@each_case("ends", [[20], [1, 2, 20], [3, 4, 20], [19, 20], range(1, 21)])
def test_convolution(ends: list[int]) -> None:
    generator = torch.Generator().manual_seed(9)
    inputs = torch.randn(20, CHANNELS, generator=generator)
    weight = torch.randn(KERNEL, CHANNELS, generator=generator)
    wanted = causal_conv1d_fn(inputs.t().unsqueeze(0), weight.t(), activation=None)[0].t()
    by_row = len(ends) == len(inputs)
    state = torch.zeros(*([1] if by_row else []), KERNEL - 1, CHANNELS)
    advance = conv_step if by_row else conv_span
    found, state = in_parts(
        lambda part, state: advance(part, state, weight), lambda a, b: inputs[a:b], state, ends
    )
    torch.testing.assert_close(found, wanted)
    assert torch.equal(state[0] if by_row else state, inputs[-KERNEL + 1 :])
