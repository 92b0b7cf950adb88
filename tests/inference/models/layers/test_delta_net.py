"""Gated DeltaNet's functions beside those of transformers, at shapes of a few numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers.models.qwen3_next.modeling_qwen3_next import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from inference.models.layers.delta_net import (
    DeltaInputs,
    delta_chunks,
    delta_step,
    gates,
    unit_length,
)
from tests.cases import each_case

KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 2, 4, 8, 6
STATE_SHAPE = (VALUE_HEADS, KEY_DIM, VALUE_DIM)
Scanned = tuple[torch.Tensor, torch.Tensor]


class RawInputs:
    """Holds what transformers takes: queries and keys of any length, a batch of one."""

    def __init__(self, num_tokens: int, *, seed: int = 0, forgets: float = 1.0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(1, num_tokens, *shape, generator=generator)

        self.queries = normal(KEY_HEADS, KEY_DIM)
        self.keys = normal(KEY_HEADS, KEY_DIM)
        self.values = normal(VALUE_HEADS, VALUE_DIM)
        self.log_decay = -forgets * torch.rand(1, num_tokens, VALUE_HEADS, generator=generator)
        self.beta = normal(VALUE_HEADS).sigmoid()

    def ours(self) -> DeltaInputs:
        return DeltaInputs(
            queries=unit_length(self.queries[0]) * KEY_DIM**-0.5,
            keys=unit_length(self.keys[0]),
            values=self.values[0],
            log_decay=self.log_decay[0],
            beta=self.beta[0],
        )

    def chunked(self) -> Scanned:
        return self._by(torch_chunk_gated_delta_rule)

    def recurrent(self) -> Scanned:
        return self._by(torch_recurrent_gated_delta_rule)

    def _by(self, rule: Callable[..., Scanned]) -> Scanned:
        read, state = rule(
            self.queries,
            self.keys,
            self.values,
            g=self.log_decay,
            beta=self.beta,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        return read[0], state[0]


def part(inputs: DeltaInputs, start: int, end: int) -> DeltaInputs:
    return DeltaInputs(*(tensor[start:end] for tensor in _tensors(inputs)))


def in_parts(inputs: DeltaInputs, ends: list[int]) -> Scanned:
    state, start, read = torch.zeros(STATE_SHAPE), 0, []
    for end in ends:
        of_part, state = delta_chunks(part(inputs, start, end), state)
        read.append(of_part)
        start = end
    return torch.cat(read), state


def step_by_step(inputs: DeltaInputs) -> Scanned:
    states, read = torch.zeros(1, *STATE_SHAPE), []
    for index in range(len(inputs.values)):
        of_token, states = delta_step(part(inputs, index, index + 1), states)
        read.append(of_token)
    return torch.cat(read), states[0]


def check_close(ours: Scanned, theirs: Scanned) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@each_case("num_tokens", [1, 2, 63, 64, 65, 150])
def test_chunks_are_transformers(num_tokens: int) -> None:
    raw = RawInputs(num_tokens)
    ours = delta_chunks(raw.ours(), torch.zeros(STATE_SHAPE))
    check_close(ours, raw.chunked())
    check_close(ours, raw.recurrent())


def test_steps_are_transformers() -> None:
    raw = RawInputs(70)
    check_close(step_by_step(raw.ours()), raw.recurrent())


@each_case("ends", [[150], [1, 150], [64, 150], [63, 65, 66, 149, 150], [100, 150]])
def test_a_prompt_may_be_cut_anywhere(ends: list[int]) -> None:
    raw = RawInputs(150, seed=1)
    check_close(in_parts(raw.ours(), ends), raw.chunked())


def test_rows_of_a_step_are_sequences_of_their_own() -> None:
    inputs = RawInputs(5, seed=3).ours()
    states = torch.randn(5, *STATE_SHAPE, generator=torch.Generator().manual_seed(3))
    before = states.clone()
    read, after = delta_step(inputs, states)
    assert torch.equal(states, before)
    for row in range(5):
        alone = delta_step(part(inputs, row, row + 1), states[row : row + 1])
        check_close((read[row], after[row]), (alone[0][0], alone[1][0]))


def test_a_prompt_that_repeats_one_token_stays_finite() -> None:
    raw = RawInputs(512, seed=4)
    for tensor in (raw.queries, raw.keys, raw.values):
        tensor[:] = tensor[:, :1].clone()
    raw.log_decay[:] = -1e-6
    raw.beta[:] = 1 - 1e-6
    ours = delta_chunks(raw.ours(), torch.zeros(STATE_SHAPE))
    assert all(tensor.isfinite().all() for tensor in ours)
    check_close(ours, raw.recurrent())


def test_gates_that_forget_everything_leave_numbers() -> None:
    raw = RawInputs(130, seed=7, forgets=40.0)
    ours = delta_chunks(raw.ours(), torch.zeros(STATE_SHAPE))
    assert all(tensor.isfinite().all() for tensor in ours)
    check_close(ours, raw.recurrent())


def _tensors(inputs: DeltaInputs) -> tuple[torch.Tensor, ...]:
    return inputs.queries, inputs.keys, inputs.values, inputs.log_decay, inputs.beta


def test_gates_are_float32_whatever_the_activations() -> None:
    a = torch.tensor([[30.0, -4.0]], dtype=torch.bfloat16)
    b = torch.tensor([[2.0, -2.0]], dtype=torch.bfloat16)
    log_decay, beta = gates(a, b, torch.tensor([16.0, 0.5]), torch.tensor([1.0, 1.0]))
    softplus = torch.tensor([31.0, -3.0]).exp().log1p()
    expected = -torch.tensor([16.0, 0.5]) * softplus
    torch.testing.assert_close(log_decay[0], expected)
    torch.testing.assert_close(beta[0], torch.tensor([2.0, -2.0]).sigmoid())
