"""How often a sequence has used each token, and what that takes off its logits.

As in vLLM: the repetition penalty looks at prompt and output, the other two at the output.
"""

from __future__ import annotations

import torch

from inference.engine.sequence import Sequence
from inference.protocol.sampling import SamplingParams


class TokenCounts:
    """(vocab_size,) counts for one sequence; kept only for sequences that are penalised."""

    def __init__(self, sequence: Sequence, vocab_size: int, device: torch.device) -> None:
        tokens = torch.tensor(sequence.token_ids, dtype=torch.int64, device=device)
        self._seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self._seen[tokens] = True
        output = tokens[sequence.num_prompt_tokens :]
        self._output = torch.bincount(output, minlength=vocab_size).to(torch.float32)

    def add(self, token_id: int) -> None:
        self._seen[token_id] = True
        self._output[token_id] += 1

    def penalize(self, scores: torch.Tensor, params: SamplingParams) -> None:
        """(vocab_size,) float32, in place."""
        if params.repetition_penalty != 1.0:
            penalty = params.repetition_penalty
            repeated = torch.where(scores > 0, scores / penalty, scores * penalty)
            torch.where(self._seen, repeated, scores, out=scores)
        if params.frequency_penalty != 0.0:
            scores -= params.frequency_penalty * self._output
        if params.presence_penalty != 0.0:
            scores -= params.presence_penalty * (self._output > 0)
