"""Mamba-2's scan beside transformers', in parts and row by row, at shapes of a few numbers."""

from __future__ import annotations

import torch
from transformers.models.bamba.modeling_bamba import mamba2_chunk_scan

from inference.models.layers.mamba import ScanInputs, scan_chunks, scan_step
from tests.cases import each_case

HEADS, GROUPS, HEAD_DIM, STATE_SIZE = 4, 2, 6, 8
STATE_SHAPE = (HEADS, HEAD_DIM, STATE_SIZE)
Scanned = tuple[torch.Tensor, torch.Tensor]


class RawInputs:
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
        read, state = mamba2_chunk_scan(
            self.values[None],
            self.steps[None],
            -self.rates,
            self.keys[None],
            self.queries[None],
            chunk_size=16,
            return_final_states=True,
        )
        return read[0], state[0]


def in_parts(raw: RawInputs, ends: list[int]) -> Scanned:
    state, start, read = torch.zeros(STATE_SHAPE), 0, []
    for end in ends:
        before = state.clone()
        of_part, following = scan_chunks(raw.ours(start, end), state)
        assert torch.equal(state, before)
        read.append(of_part)
        start, state = end, following
    return torch.cat(read), state


def check_close(ours: Scanned, theirs: Scanned) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


@each_case("num_tokens", [1, 63, 64, 65, 150])
def test_chunks(num_tokens: int) -> None:
    raw = RawInputs(num_tokens)
    check_close(in_parts(raw, [num_tokens]), raw.theirs())


@each_case("ends", [[1, 150], [64, 65, 150], [70, 150]])
def test_a_prompt_may_be_cut_anywhere(ends: list[int]) -> None:
    raw = RawInputs(150)
    check_close(in_parts(raw, ends), raw.theirs())


def test_steps() -> None:
    raw, states, read = RawInputs(40), torch.zeros(1, *STATE_SHAPE), []
    for index in range(40):
        of_token, states = scan_step(raw.ours(index, index + 1), states)
        read.append(of_token)
    check_close((torch.cat(read), states[0]), raw.theirs())


def test_heads_that_forget_at_once_overflow_nothing() -> None:
    raw = RawInputs(150, rate=1e4)
    read, state = in_parts(raw, [150])
    assert read.isfinite().all() and state.isfinite().all()
    check_close((read, state), raw.theirs())


def test_a_rows_numbers_do_not_depend_on_its_neighbours() -> None:
    raw = RawInputs(5)
    states = torch.randn(5, *STATE_SHAPE, generator=torch.Generator().manual_seed(1))
    read, after = scan_step(raw.ours(), states)
    for index in range(5):
        lone = slice(index, index + 1)
        own, own_after = scan_step(raw.ours(index, index + 1), states[lone])
        assert torch.equal(own, read[lone]) and torch.equal(own_after, after[lone])
