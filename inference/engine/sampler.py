"""Chooses one token per row of logits. Per-row parameters become tensors here; nothing else does.

A row's token depends on its own logits, parameters and random stream, never on its batch mates:
every operation works along the vocabulary, and one uniform number per token, from the sequence's
own generator, is looked up in the cumulative distribution.
"""

from __future__ import annotations

import random

import torch

from inference.engine.engine import Sampled
from inference.engine.penalties import TokenCounts
from inference.engine.sequence import Sequence
from inference.protocol.sampling import SamplingParams, TokenLogprob

TOP_CANDIDATES = 1024
"""Enough to hold the nucleus of most distributions: cheaper to find than to sort a vocabulary."""
NUM_RANDOM_BITS = 24
"""What float32 holds exactly below 1."""


class Sampler:
    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._random: dict[str, random.Random] = {}
        self._counts: dict[str, TokenCounts] = {}

    @torch.inference_mode()
    def sample(self, sequences: list[Sequence], logits: torch.Tensor) -> Sampled:
        """``logits`` (num_sequences, vocab_size) float32; read only."""
        if not sequences:
            return Sampled([], frozenset(), {})
        largest, greedy = logits.max(dim=-1)
        failed = self._failed_rows(largest)
        token_ids: list[int] = greedy.tolist()
        special = [row for row, s in enumerate(sequences) if not is_plain_greedy(s)]
        special = [row for row in special if row not in failed]
        if special:
            self._sample_special(sequences, logits, special, token_ids)
        return Sampled(token_ids, failed, self._logprobs(sequences, logits, token_ids, failed))

    def forget(self, sequence: Sequence) -> None:
        self._random.pop(sequence.sequence_id, None)
        self._counts.pop(sequence.sequence_id, None)

    def _failed_rows(self, largest: torch.Tensor) -> frozenset[int]:
        """Rows with a NaN (``max`` propagates it), or where nothing is finite."""
        finite = torch.isfinite(largest)
        if bool(finite.all()):
            return frozenset()
        return frozenset(torch.nonzero(~finite).flatten().tolist())

    def _sample_special(
        self,
        sequences: list[Sequence],
        logits: torch.Tensor,
        rows: list[int],
        token_ids: list[int],
    ) -> None:
        """Everything but plain greedy; writes into ``token_ids``."""
        chosen = [sequences[row] for row in rows]
        scores = logits[rows].clone()
        self._adjust(scores, chosen)
        greedy = scores.argmax(dim=-1).tolist()
        drawn_rows = [i for i, s in enumerate(chosen) if s.params.temperature > 0]
        drawn = self._draw(scores, chosen, drawn_rows)
        for index, (row, sequence) in enumerate(zip(rows, chosen, strict=True)):
            token_ids[row] = drawn.get(index, greedy[index])
            if (counts := self._counts.get(sequence.sequence_id)) is not None:
                counts.add(token_ids[row])

    def _adjust(self, scores: torch.Tensor, sequences: list[Sequence]) -> None:
        """Penalties, then logit_bias, then forbidden stop tokens; in place."""
        for row, sequence in enumerate(sequences):
            params = sequence.params
            if has_penalties(params):
                self._counts_of(sequence, scores.device).penalize(scores[row], params)
            if params.logit_bias:
                ids = torch.tensor(list(params.logit_bias), device=scores.device)
                bias = torch.tensor(list(params.logit_bias.values()), device=scores.device)
                scores[row, ids] += bias
            if sequence.num_output_tokens < params.min_tokens and params.stop_token_ids:
                scores[row, params.stop_token_ids] = float("-inf")

    def _counts_of(self, sequence: Sequence, device: torch.device) -> TokenCounts:
        counts = self._counts.get(sequence.sequence_id)
        if counts is None:
            counts = TokenCounts(sequence, self._vocab_size, device)
            self._counts[sequence.sequence_id] = counts
        return counts

    def _draw(
        self, scores: torch.Tensor, sequences: list[Sequence], rows: list[int]
    ) -> dict[int, int]:
        """Row -> token drawn from its filtered distribution."""
        if not rows:
            return {}
        params = [sequences[row].params for row in rows]
        scaled = scores[rows] / _column([p.temperature for p in params], scores.device)
        probabilities = filter_probabilities(torch.softmax(scaled, dim=-1), params)
        uniform = _column([self._uniform(sequences[row]) for row in rows], scores.device)
        cumulative = probabilities.cumsum(dim=-1)
        total = cumulative[:, -1:]
        # A uniform number below 1 times the total can round up to the total, past the last token.
        target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
        drawn = torch.searchsorted(cumulative, target, right=True)
        return dict(zip(rows, drawn.flatten().tolist(), strict=True))

    def _uniform(self, sequence: Sequence) -> float:
        generator = self._random.get(sequence.sequence_id)
        if generator is None:
            generator = self._random[sequence.sequence_id] = random.Random(sequence.params.seed)
        return generator.getrandbits(NUM_RANDOM_BITS) * 2.0**-NUM_RANDOM_BITS

    def _logprobs(
        self,
        sequences: list[Sequence],
        logits: torch.Tensor,
        token_ids: list[int],
        failed: frozenset[int],
    ) -> dict[int, TokenLogprob]:
        rows = [
            row
            for row, sequence in enumerate(sequences)
            if sequence.params.top_logprobs is not None and row not in failed
        ]
        if not rows:
            return {}
        logprobs = torch.log_softmax(logits[rows], dim=-1)
        wanted = [sequences[row].params.top_logprobs or 0 for row in rows]
        top = logprobs.topk(min(max(wanted), logprobs.shape[-1]), dim=-1)
        top_values, top_ids = top.values.tolist(), top.indices.tolist()
        found: dict[int, TokenLogprob] = {}
        for index, row in enumerate(rows):
            best = list(zip(top_ids[index], top_values[index], strict=True))[: wanted[index]]
            value = float(logprobs[index, token_ids[row]])
            found[row] = TokenLogprob(token_ids[row], value, best)
        return found


def is_plain_greedy(sequence: Sequence) -> bool:
    """Whether the largest raw logit is the answer."""
    params = sequence.params
    return (
        params.temperature == 0
        and not has_penalties(params)
        and not params.logit_bias
        and sequence.num_output_tokens >= params.min_tokens
    )


def has_penalties(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )


def filter_probabilities(probabilities: torch.Tensor, params: list[SamplingParams]) -> torch.Tensor:
    """Zero what top_k, top_p and min_p exclude: (num_rows, vocab_size), not renormalised.

    Filters apply in that order, top_p to the distribution that top_k left. The most likely token
    always stays.
    """
    if any(p.top_k > 0 or p.top_p < 1.0 for p in params):
        thresholds = _nucleus_threshold(probabilities, params)
        probabilities = probabilities * (probabilities >= thresholds)
    if any(p.min_p > 0 for p in params):
        largest = probabilities.max(dim=-1, keepdim=True).values
        floor = largest * _column([p.min_p for p in params], probabilities.device)
        probabilities = probabilities * (probabilities >= floor)
    return probabilities


def _nucleus_threshold(probabilities: torch.Tensor, params: list[SamplingParams]) -> torch.Tensor:
    """(num_rows, 1): the smallest probability that top_k and top_p keep. Ties with it stay."""
    device, vocab_size = probabilities.device, probabilities.shape[-1]
    top_k = [p.top_k if p.top_k > 0 else vocab_size for p in params]
    limits = _column([float(min(k, vocab_size)) for k in top_k], device)
    top_p = _column([p.top_p for p in params], device)
    num_candidates = min(max([TOP_CANDIDATES, *(p.top_k for p in params)]), vocab_size)
    while True:
        values = probabilities.topk(num_candidates, dim=-1).values
        ranks = torch.arange(num_candidates, device=device)
        values = values * (ranks < limits)
        mass = torch.where(limits < vocab_size, values.sum(-1, keepdim=True), 1.0)
        before = values.cumsum(dim=-1) - values
        kept = (before < top_p * mass) & (ranks < limits)
        # Where even the last candidate is kept there may be more behind it.
        if num_candidates == vocab_size or not bool(
            (kept[:, -1:] & (limits > num_candidates)).any()
        ):
            last = kept.sum(dim=-1, keepdim=True).clamp_min(1) - 1
            return values.gather(-1, last)
        num_candidates = vocab_size


def _column(values: list[float], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device).unsqueeze(1)
