"""What grammars allow of scores. llguidance fills one bit per token for each sequence; here the
bits meet the sequence's own stop tokens.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field

import numpy as np
import torch
from llguidance.numpy import allocate_token_bitmask

from inference.engine.sampling.drawing import Bits, Drawer
from inference.engine.sampling.grammars import GrammarState
from inference.engine.scheduling.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Masked:
    """Rows without a choice: ``ended`` can only stop; ``broken`` cannot continue, with the reason.
    The token sampled for them is meaningless."""

    ended: set[int] = field(default_factory=set)
    broken: dict[int, str] = field(default_factory=dict)

    def at_rows(self, rows: Ordered[int]) -> Masked:
        """The same with row ``i`` called ``rows[i]``."""
        return Masked(
            {rows[index] for index in self.ended},
            {rows[index]: problem for index, problem in self.broken.items()},
        )


def apply_masks(scores: torch.Tensor, sequences: list[Sequence], drawer: Drawer) -> Masked:
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
    # One after the other: llguidance's thread pool was seen to deadlock beside ours.
    for index, (_, _, state) in enumerate(bound):
        state.fill_mask(words, index)
    bits = words.view(np.uint8)
    for row_bits, (row, sequence, state) in zip(bits, bound, strict=True):
        settle_end(row_bits, row, sequence, state, masked)
    drawer.forbid(scores, [row for row, _, _ in bound], bits)
    return masked


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
