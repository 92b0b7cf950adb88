"""What a grammar allows, as what is added to scores. llguidance fills one bit per token for each
sequence; here the bits meet the sequence's own stop tokens and become minus infinities.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from inference.engine.grammars import GrammarState
from inference.engine.sequence import Sequence
from inference.engine.to_device import on_device

Bits = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Masked:
    """Rows with nothing to choose: ``ended`` can only stop; ``broken`` cannot go on, and why.
    Whatever token is sampled for them means nothing."""

    ended: set[int] = field(default_factory=set)
    broken: dict[int, str] = field(default_factory=dict)

    def at_rows(self, rows: Ordered[int]) -> Masked:
        """The same with row ``i`` called ``rows[i]``."""
        return Masked(
            {rows[index] for index in self.ended},
            {rows[index]: problem for index, problem in self.broken.items()},
        )


class GrammarMasks:
    def __init__(self) -> None:
        self._biases: torch.Tensor | None = None

    def apply(self, scores: torch.Tensor, sequences: list[Sequence]) -> Masked:
        """``scores`` (num_sequences, vocab_size) float32, in place."""
        masked = Masked()
        bound = [
            (row, sequence, sequence.grammar)
            for row, sequence in enumerate(sequences)
            if sequence.grammar is not None and sequence.grammar.is_active
        ]
        if not bound:
            return masked
        words = allocate_token_bitmask(len(bound), scores.shape[-1])
        # One after the other: llguidance's pool of threads was seen to wait for ever beside ours.
        for index, (_, _, state) in enumerate(bound):
            fill_next_token_bitmask(state.matcher, words, index)
        bits = words.view(np.uint8)
        for row_bits, (row, sequence, state) in zip(bits, bound, strict=True):
            settle_end(row_bits, row, sequence, state, masked)
        bits_there = on_device(bits, torch.uint8, scores.device)
        bias = self._unpack(bits_there)[:, : scores.shape[-1]]
        if len(bound) == len(scores):
            scores += bias
        else:
            rows = on_device([row for row, _, _ in bound], torch.int64, scores.device)
            scores.index_add_(0, rows, bias)
        return masked

    def _unpack(self, bits: torch.Tensor) -> torch.Tensor:
        """(num_rows, 8 * bytes) float32 out of (num_rows, bytes) uint8, least significant bit
        first: 0 where the bit is set, else minus infinity. Looked up a byte at a time, which is ten
        times as fast as shifting bits and filling."""
        if self._biases is None:
            self._biases = byte_biases().to(bits.device)
        return self._biases.index_select(0, bits.flatten().int()).view(len(bits), -1)


def settle_end(
    bits: Bits, row: int, sequence: Sequence, state: GrammarState, masked: Masked
) -> None:
    """Correct one row's bits, in place. llguidance allows all end tokens where the grammar may end;
    the sequence may sample those that stop it (none, when it ignores them). Where the end is all
    there is, it has ended."""
    first = state.end_ids[0]
    may_end = bool(bits[first >> 3] >> (first & 7) & 1)
    for token_id in state.end_ids:
        bits[token_id >> 3] &= 0xFF ^ (1 << (token_id & 7))
    if bits.any():
        for token_id in sequence.stop_ids.intersection(state.end_ids) if may_end else ():
            bits[token_id >> 3] |= 1 << (token_id & 7)
        return
    if (problem := state.problem) is not None:
        masked.broken[row] = problem
    elif may_end:
        masked.ended.add(row)
    else:
        masked.broken[row] = "no token of the model can continue the output here"
    bits[:] = 0xFF


def byte_biases() -> torch.Tensor:
    """(256, 8) float32: what the bits of each byte add to the scores of eight tokens."""
    values = torch.arange(256).unsqueeze(1)
    is_set = (values >> torch.arange(8)) & 1 == 1
    return torch.where(is_set, 0.0, float("-inf"))
