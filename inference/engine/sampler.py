"""Chooses one token per row of logits. Per-row parameters become tensors here; nothing else does.

A row's token depends on its own logits, parameters and random stream, never on its batch mates:
every operation works along the vocabulary, and one uniform number per token, from the sequence's
own generator, is looked up in the cumulative distribution.

    logits ─ penalties ─ logit_bias ─ grammar ─ min_tokens ─▶ scores ─ temperature, filters ─▶ token
"""

from __future__ import annotations

import math

import torch

from inference.engine.engine import Sampled
from inference.engine.filters import column, filter_probabilities
from inference.engine.logprobs import token_logprobs
from inference.engine.masks import GrammarMasks, Masked
from inference.engine.penalties import TokenCounts
from inference.engine.random_stream import RandomStream
from inference.engine.sequence import Sequence
from inference.engine.thinking import ThinkingBudget
from inference.protocol.sampling import SamplingParams, TokenLogprob


class Sampler:
    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._masks = GrammarMasks()
        self._random: dict[str, RandomStream] = {}
        self._counts: dict[str, TokenCounts] = {}
        self._thinking: dict[str, ThinkingBudget] = {}

    @torch.inference_mode()
    def sample(self, sequences: list[Sequence], logits: torch.Tensor) -> Sampled:
        """``logits`` (num_sequences, vocab_size) float32; read only. What cannot be taken back
        comes last, after all that may raise, so that a step can be tried again."""
        if not sequences:
            return Sampled([], frozenset(), {})
        largest, token_ids = largest_of(logits)
        failed = frozenset(row for row, value in enumerate(largest) if not math.isfinite(value))
        special = [
            row
            for row, sequence in enumerate(sequences)
            if row not in failed and not is_answer(token_ids[row], sequence)
        ]
        masked = Masked()
        if special:
            masked = self._sample_special(sequences, logits, special, token_ids)
        logprobs = self._logprobs(sequences, logits, token_ids, failed)
        complete = self._follow(sequences, token_ids, masked)
        return Sampled(token_ids, failed, logprobs, complete, masked.ended, masked.broken)

    def forget(self, sequence: Sequence) -> None:
        self._random.pop(sequence.sequence_id, None)
        self._counts.pop(sequence.sequence_id, None)
        self._thinking.pop(sequence.sequence_id, None)

    def _sample_special(
        self,
        sequences: list[Sequence],
        logits: torch.Tensor,
        rows: list[int],
        token_ids: list[int],
    ) -> Masked:
        """All but greedy rows whose answer is known; writes into ``token_ids``."""
        chosen = [sequences[row] for row in rows]
        scores = logits.clone() if len(rows) == len(logits) else logits[rows]
        self._adjust(scores, chosen)
        masked = self._masks.apply(scores, chosen)
        forbid_early_stops(scores, chosen)
        _, greedy = largest_of(scores)
        drawn_rows = [i for i, s in enumerate(chosen) if s.params.temperature > 0]
        drawn = self._draw(scores, chosen, drawn_rows)
        for index, row in enumerate(rows):
            forced = self._forced_token(chosen[index])
            token_ids[row] = drawn.get(index, greedy[index]) if forced is None else forced
        return masked.at_rows(rows)

    def _adjust(self, scores: torch.Tensor, sequences: list[Sequence]) -> None:
        """Penalties, then logit_bias; in place."""
        for row, sequence in enumerate(sequences):
            params = sequence.params
            if has_penalties(params):
                self._counts_of(sequence, scores.device).penalize(scores[row], params)
            if params.logit_bias:
                ids = torch.tensor(list(params.logit_bias), device=scores.device)
                bias = torch.tensor(list(params.logit_bias.values()), device=scores.device)
                scores[row, ids] += bias

    def _forced_token(self, sequence: Sequence) -> int | None:
        """The end of a thinking block that has had its share. A grammar that holds already says
        itself what comes."""
        if sequence.params.thinking_limit is None:
            return None
        if sequence.grammar is not None and sequence.grammar.is_active:
            return None
        return self._thinking_of(sequence).forced_token

    def _follow(
        self, sequences: list[Sequence], token_ids: list[int], masked: Masked
    ) -> frozenset[int]:
        """Tell what follows the output of its new tokens. Returns the rows whose grammar is
        complete with theirs; adds to ``masked`` those that broke theirs."""
        complete = []
        for row, (sequence, token_id) in enumerate(zip(sequences, token_ids, strict=True)):
            if (counts := self._counts.get(sequence.sequence_id)) is not None:
                counts.add(token_id)
            if sequence.params.thinking_limit is not None:
                self._thinking_of(sequence).advance(token_id)
            state = sequence.grammar
            if state is None or row in masked.ended or row in masked.broken:
                continue
            if token_id not in sequence.stop_ids:
                state.advance(token_id)
                if (problem := state.problem) is not None:
                    masked.broken[row] = problem
                elif state.is_complete:
                    complete.append(row)
        return frozenset(complete)

    def _counts_of(self, sequence: Sequence, device: torch.device) -> TokenCounts:
        counts = self._counts.get(sequence.sequence_id)
        if counts is None:
            counts = TokenCounts(sequence, self._vocab_size, device)
            self._counts[sequence.sequence_id] = counts
        return counts

    def _thinking_of(self, sequence: Sequence) -> ThinkingBudget:
        budget = self._thinking.get(sequence.sequence_id)
        if budget is None:
            assert sequence.params.thinking_limit is not None
            budget = ThinkingBudget(sequence.params.thinking_limit)
            self._thinking[sequence.sequence_id] = budget
        return budget

    def _draw(
        self, scores: torch.Tensor, sequences: list[Sequence], rows: list[int]
    ) -> dict[int, int]:
        """Row -> token drawn from its filtered distribution."""
        if not rows:
            return {}
        params = [sequences[row].params for row in rows]
        scaled = scores[rows] / column([p.temperature for p in params], scores.device)
        probabilities = filter_probabilities(torch.softmax(scaled, dim=-1), params)
        uniform = column([self._uniform(sequences[row]) for row in rows], scores.device)
        cumulative = probabilities.cumsum(dim=-1)
        total = cumulative[:, -1:]
        # A uniform number below 1 times the total can round up to the total, past the last token.
        target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
        drawn = torch.searchsorted(cumulative, target, right=True)
        return dict(zip(rows, drawn.flatten().tolist(), strict=True))

    def _uniform(self, sequence: Sequence) -> float:
        stream = self._random.get(sequence.sequence_id)
        if stream is None:
            stream = self._random[sequence.sequence_id] = RandomStream(sequence.params.seed)
        return stream.uniform(sequence.num_output_tokens)

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
        wanted = [sequences[row].params.top_logprobs or 0 for row in rows]
        found = token_logprobs(logits[rows], [token_ids[row] for row in rows], wanted)
        return dict(zip(rows, found, strict=True))


def largest_of(scores: torch.Tensor) -> tuple[list[float], list[int]]:
    """Each row's largest value and its first place. A row with a NaN gives NaN."""
    if scores.device.type == "cpu":
        # numpy's argmax is vectorised; torch's maximum with places is not, and ten times as slow.
        array = scores.numpy()
        places = array.argmax(axis=-1)
        return array[range(len(array)), places].tolist(), places.tolist()
    values, indices = scores.max(dim=-1)
    return values.tolist(), indices.tolist()


def forbid_early_stops(scores: torch.Tensor, sequences: list[Sequence]) -> None:
    """min_tokens, in place. It gives way where the grammar leaves nothing but a stop token."""
    for row, sequence in enumerate(sequences):
        params = sequence.params
        if sequence.num_output_tokens < params.min_tokens and params.stop_token_ids:
            stops = scores[row, params.stop_token_ids]
            scores[row, params.stop_token_ids] = float("-inf")
            if bool(torch.isneginf(scores[row].amax())):
                scores[row, params.stop_token_ids] = stops


def is_answer(token_id: int, sequence: Sequence) -> bool:
    """Whether the token with the largest raw logit is the one to take. With a grammar it nearly
    always is, for a model that knows what it writes; then nobody needs the mask."""
    params = sequence.params
    return (
        params.temperature == 0
        and params.thinking_limit is None
        and not has_penalties(params)
        and not params.logit_bias
        and sequence.num_output_tokens >= params.min_tokens
        and (sequence.grammar is None or sequence.grammar.allows(token_id))
    )


def has_penalties(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )
