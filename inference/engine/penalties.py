"""How often sequences have used each token, and what that takes off their logits.

As in vLLM: the repetition penalty looks at prompt and output, the other two at the output.
"""

from __future__ import annotations

import torch

from inference.engine.sequence import Sequence
from inference.engine.to_device import column, on_device
from inference.protocol.sampling import SamplingParams

FIRST_ROWS = 4


class TokenCounts:
    """A row of counts for each sequence that is penalised, kept from step to step; all on the
    scores' device. Rows grow by doubling."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._seen = torch.zeros(0, vocab_size, dtype=torch.bool)
        self._output = torch.zeros(0, vocab_size)
        self._row_of: dict[str, int] = {}
        self._free_rows: list[int] = []

    def add(self, sequences: list[Sequence], token_ids: list[int]) -> None:
        """Each penalised sequence's new token."""
        pairs = [
            (row, token_id)
            for sequence, token_id in zip(sequences, token_ids, strict=True)
            if (row := self._row_of.get(sequence.sequence_id)) is not None
        ]
        if not pairs:
            return
        places = [row * self._vocab_size + token_id for row, token_id in pairs]
        where = on_device(places, torch.int64, self._seen.device)
        self._seen.view(-1).index_fill_(0, where, True)
        self._output.view(-1).index_add_(0, where, self._output.new_ones(len(places)))

    def forget(self, sequence_id: str) -> None:
        if (row := self._row_of.pop(sequence_id, None)) is not None:
            self._free_rows.append(row)

    def penalize(self, scores: torch.Tensor, sequences: list[Sequence]) -> None:
        """``scores`` (num_sequences, vocab_size) float32, in place."""
        rows = [row for row, sequence in enumerate(sequences) if has_penalties(sequence.params)]
        if not rows:
            return
        device, chosen = scores.device, [sequences[row] for row in rows]
        counted = on_device([self._row(s, device) for s in chosen], torch.int64, device)
        where = on_device(rows, torch.int64, device)
        penalized = self._penalized(scores.index_select(0, where), counted, chosen)
        scores.index_copy_(0, where, penalized)

    def _penalized(
        self, scores: torch.Tensor, counted: torch.Tensor, sequences: list[Sequence]
    ) -> torch.Tensor:
        params = [sequence.params for sequence in sequences]
        if any(p.repetition_penalty != 1.0 for p in params):
            penalty = column([p.repetition_penalty for p in params], scores.device)
            repeated = torch.where(scores > 0, scores / penalty, scores * penalty)
            scores = torch.where(self._seen.index_select(0, counted), repeated, scores)
        output = self._output.index_select(0, counted)
        if any(p.frequency_penalty != 0.0 for p in params):
            scores = scores - column([p.frequency_penalty for p in params], scores.device) * output
        if any(p.presence_penalty != 0.0 for p in params):
            penalty = column([p.presence_penalty for p in params], scores.device)
            scores = scores - penalty * (output > 0)
        return scores

    def _row(self, sequence: Sequence, device: torch.device) -> int:
        row = self._row_of.get(sequence.sequence_id)
        if row is None:
            if not self._free_rows:
                self._grow(device)
            row = self._row_of[sequence.sequence_id] = self._free_rows.pop()
            self._count(row, sequence)
        return row

    def _count(self, row: int, sequence: Sequence) -> None:
        """From its tokens so far."""
        tokens = on_device(sequence.token_ids, torch.int64, self._seen.device)
        self._seen[row].zero_().index_fill_(0, tokens, True)
        output = tokens[sequence.num_prompt_tokens :]
        ones = self._output.new_ones(len(output))
        self._output[row].zero_().index_add_(0, output, ones)

    def _grow(self, device: torch.device) -> None:
        num_rows = len(self._seen)
        more = max(num_rows, FIRST_ROWS)
        self._seen, self._output = (
            torch.cat([held.to(device), held.new_zeros(more, self._vocab_size, device=device)])
            for held in (self._seen, self._output)
        )
        self._free_rows.extend(range(num_rows + more - 1, num_rows - 1, -1))


def has_penalties(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )
