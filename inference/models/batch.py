"""One step's rows as tensors: what a model's ``decode`` and ``prefill`` are given.

Slots and block ids index ``PagedKV``; everything is int64 on the model's device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DecodeBatch:
    """One new token of each of ``num_rows`` sequences."""

    token_ids: torch.Tensor
    """(num_rows,)"""
    positions: torch.Tensor
    """(num_rows,)"""
    slots: torch.Tensor
    """(num_rows,) where each row's own keys and values go."""
    block_ids: torch.Tensor
    """(num_rows, num_context_blocks); rows with fewer blocks are filled up with any valid id."""

    def end(self, block_tokens: int) -> int:
        """No row's position is that high. Known to the host: the positions may be elsewhere."""
        return self.block_ids.shape[1] * block_tokens


@dataclass(frozen=True)
class PrefillSpan:
    """Rows ``[first_row, last_row)`` of the batch are positions ``[start, end)`` of one sequence.

    positions   0 .......... start ....... end
                [ in blocks ][ these rows  )
    """

    first_row: int
    last_row: int
    start: int
    end: int
    block_ids: torch.Tensor
    """(ceil(end / block_tokens),)"""


LAST_ROW = slice(-1, None)
ALL_ROWS = slice(None)


@dataclass(frozen=True)
class PrefillBatch:
    """Prompt tokens of one or more sequences, one after the other."""

    token_ids: torch.Tensor
    """(num_tokens,)"""
    positions: torch.Tensor
    """(num_tokens,)"""
    slots: torch.Tensor
    """(num_tokens,)"""
    spans: tuple[PrefillSpan, ...]
    logit_rows: torch.Tensor
    """(num_logit_rows,) rows whose logits are wanted."""

    @property
    def end(self) -> int:
        """No row's position is that high."""
        return max(span.end for span in self.spans)

    @classmethod
    def of_sequence(
        cls,
        token_ids: torch.Tensor,
        block_tokens: int,
        *,
        start: int = 0,
        logit_rows: slice = LAST_ROW,
    ) -> PrefillBatch:
        """One sequence's tokens from position ``start`` on, in blocks 0, 1, 2, …, so that slots are
        positions."""
        num_tokens, device = len(token_ids), token_ids.device
        end = start + num_tokens
        positions = torch.arange(start, end, device=device)
        blocks = torch.arange(-(-end // block_tokens), device=device)
        return cls(
            token_ids=token_ids,
            positions=positions,
            slots=positions,
            spans=(PrefillSpan(0, num_tokens, start, end, blocks),),
            logit_rows=torch.arange(num_tokens, device=device)[logit_rows],
        )
