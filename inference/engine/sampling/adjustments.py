"""What a sequence's own parameters add to its scores and forbid there, for all rows at once."""

from __future__ import annotations

import torch

from inference.engine.scheduling.sequence import Sequence
from inference.models.to_device import on_device


def add_bias(scores: torch.Tensor, sequences: list[Sequence]) -> None:
    """logit_bias; ``scores`` (num_sequences, vocab_size) float32, contiguous, in place."""
    vocab_size = scores.shape[-1]
    biases = {
        row * vocab_size + token_id: value
        for row, sequence in enumerate(sequences)
        for token_id, value in sequence.params.logit_bias.items()
    }
    if biases:
        places = on_device(list(biases), torch.int64, scores.device)
        values = on_device(list(biases.values()), torch.float32, scores.device)
        scores.view(-1).index_add_(0, places, values)


def forbid_early_stops(scores: torch.Tensor, sequences: list[Sequence]) -> None:
    """min_tokens, in place. It gives way where the grammar leaves nothing but a stop token."""
    vocab_size = scores.shape[-1]
    stops = [
        (row * vocab_size + token_id, row)
        for row, sequence in enumerate(sequences)
        if sequence.num_output_tokens < sequence.params.min_tokens
        for token_id in sequence.stop_ids
    ]
    if not stops:
        return
    places = on_device([place for place, _ in stops], torch.int64, scores.device)
    rows = on_device([row for _, row in stops], torch.int64, scores.device)
    flat = scores.view(-1)
    allowed = flat.index_select(0, places)
    flat.index_fill_(0, places, float("-inf"))
    is_left_nothing = torch.isneginf(scores.amax(dim=-1)).index_select(0, rows)
    flat.index_copy_(0, places, torch.where(is_left_nothing, allowed, float("-inf")))
