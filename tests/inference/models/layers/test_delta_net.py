"""Gated DeltaNet's functions beside those of transformers, at shapes of a few numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.qwen3_next.modeling_qwen3_next import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from inference.models.layers.delta_net import (
    CHUNK_TOKENS,
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


def test_decoding_continues_where_a_prompt_ended() -> None:
    raw = RawInputs(80, seed=2)
    inputs = raw.ours()
    _, state = delta_chunks(part(inputs, 0, 70), torch.zeros(STATE_SHAPE))
    states = state.unsqueeze(0)
    for index in range(70, 80):
        read, states = delta_step(part(inputs, index, index + 1), states)
    expected, expected_state = raw.recurrent()
    check_close((read[0], states[0]), (expected[-1], expected_state))


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
    """Keys that are all the same and gates that forget nothing: the case in which the powers of
    the triangular system grow beyond float32."""
    raw = RawInputs(512, seed=4)
    for tensor in (raw.queries, raw.keys, raw.values):
        tensor[:] = tensor[:, :1].clone()
    raw.log_decay[:] = -1e-6
    raw.beta[:] = 1 - 1e-6
    ours = delta_chunks(raw.ours(), torch.zeros(STATE_SHAPE))
    assert all(tensor.isfinite().all() for tensor in ours)
    check_close(ours, raw.recurrent())


@each_case("difference", [0.0, 1e-7, 1e-4, 1e-2])
def test_keys_that_are_nearly_the_same(difference: float) -> None:
    raw = RawInputs(200, seed=5, forgets=1e-3)
    raw.keys[:] = raw.keys[:, :1] + difference * raw.keys
    ours, theirs = delta_chunks(raw.ours(), torch.zeros(STATE_SHAPE)), raw.recurrent()
    check_close(ours, theirs)


def test_a_short_phrase_again_and_again() -> None:
    raw = RawInputs(300, seed=6, forgets=0.01)
    for tensor in (raw.queries, raw.keys, raw.values, raw.log_decay, raw.beta):
        tensor[:] = tensor[:, :3].repeat(1, 100, *(1,) * (tensor.dim() - 2))
    check_close(delta_chunks(raw.ours(), torch.zeros(STATE_SHAPE)), raw.recurrent())


def test_gates_that_forget_everything_leave_numbers() -> None:
    """The logarithms within a chunk add up to far below what float32 can raise e to."""
    raw = RawInputs(130, seed=7, forgets=40.0)
    ours = delta_chunks(raw.ours(), torch.zeros(STATE_SHAPE))
    assert all(tensor.isfinite().all() for tensor in ours)
    check_close(ours, raw.recurrent())


@pytest.mark.parametrize(
    "num_decoded", [500, pytest.param(10_000, marks=pytest.mark.slow)], ids=str
)
def test_the_ten_thousandth_token_is_still_exact(num_decoded: int) -> None:
    """What comes before the decoded ones is a prompt."""
    raw = RawInputs(10_000, seed=8, forgets=0.01)
    num_prompt = 10_000 - num_decoded
    inputs, states = raw.ours(), torch.zeros(1, *STATE_SHAPE)
    if num_prompt:
        _, state = delta_chunks(part(inputs, 0, num_prompt), states[0])
        states = state.unsqueeze(0)
    decoded = part(inputs, num_prompt, 10_000)
    with torch.inference_mode():
        for row in zip(*(tensor.split(1) for tensor in _tensors(decoded)), strict=True):
            read, states = delta_step(DeltaInputs(*row), states)
    expected, expected_state = raw.chunked()
    check_close((read[0], states[0]), (expected[-1], expected_state))


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


class CountedOperators(TorchDispatchMode):
    """How many of torch's operators run, each of which a card launches by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += not func.is_view
        return func(*args, **(kwargs or {}))


def test_one_product_a_chunk_is_left_to_do_in_order() -> None:
    """All else is done for all chunks of a prompt at once."""
    counts = []
    for num_chunks in (4, 20):
        inputs = RawInputs(CHUNK_TOKENS * num_chunks, seed=5).ours()
        with CountedOperators() as counted:
            delta_chunks(inputs, torch.zeros(STATE_SHAPE))
        counts.append(counted.number)
    assert counts[1] - counts[0] == 16
