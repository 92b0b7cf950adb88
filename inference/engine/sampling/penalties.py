"""Which sequences need logits processors, and the penalties of used tokens among these.

As in vLLM: the repetition penalty looks at prompt and output, the other two at the output. As in
llama.cpp the repetition penalty may look at the last tokens alone.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch

from inference.engine.scheduling.sequence import Sequence
from inference.models.to_device import on_device
from inference.protocol.sampling import SamplingParams


class UsedTokens:
    """The different tokens of one sequence: a few hundred of a vocabulary, so that what they cost a
    step does not grow with the vocabulary."""

    def __init__(self, sequence: Sequence) -> None:
        self._place_of: dict[int, int] = {}
        self._token_ids = np.zeros(64, dtype=np.int64)
        self._output_counts = np.zeros(64, dtype=np.float32)
        self._window_counts = np.zeros(64, dtype=np.float32)
        window = sequence.params.repetition_window
        self._window: deque[int] | None = None if window is None else deque(maxlen=window)
        for token_id in sequence.token_ids[: sequence.num_prompt_tokens]:
            self._place(token_id)
            self._see(token_id)
        for token_id in sequence.token_ids[sequence.num_prompt_tokens :]:
            self.add(token_id)

    @property
    def token_ids(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return self._token_ids[: len(self._place_of)]

    @property
    def output_counts(self) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        """How often each is in the output."""
        return self._output_counts[: len(self._place_of)]

    @property
    def is_repeated(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Whether each is among the tokens that the repetition penalty looks at."""
        num_used = len(self._place_of)
        if self._window is None:
            return np.ones(num_used, dtype=np.bool_)
        return self._window_counts[:num_used] > 0

    def add(self, token_id: int) -> None:
        """Adds a token to the output."""
        place = self._place(token_id)  # first: it may replace the array
        self._output_counts[place] += 1
        self._see(token_id)

    def _see(self, token_id: int) -> None:
        """Moves the window on; the token has its place."""
        if self._window is None:
            return
        if len(self._window) == self._window.maxlen:
            self._window_counts[self._place_of[self._window[0]]] -= 1
        self._window.append(token_id)
        self._window_counts[self._place_of[token_id]] += 1

    def _place(self, token_id: int) -> int:
        place = self._place_of.setdefault(token_id, len(self._place_of))
        if place == len(self._token_ids):
            self._token_ids = np.resize(self._token_ids, 2 * place)
            zeros = np.zeros_like(self._output_counts)
            self._output_counts = np.concatenate([self._output_counts, zeros])
            self._window_counts = np.concatenate([self._window_counts, zeros])
        self._token_ids[place] = token_id
        return place


class TokenCounts:
    """How often each penalised sequence has used each token, counted from its first step on."""

    def __init__(self) -> None:
        self._used: dict[str, UsedTokens] = {}

    def add(self, sequences: list[Sequence], token_ids: list[int]) -> None:
        """Each penalised sequence's new token."""
        for sequence, token_id in zip(sequences, token_ids, strict=True):
            if (used := self._used.get(sequence.sequence_id)) is not None:
                used.add(token_id)

    def forget(self, sequence_id: str) -> None:
        self._used.pop(sequence_id, None)

    def penalize(self, scores: torch.Tensor, sequences: list[Sequence]) -> None:
        """``scores`` (num_sequences, vocab_size) float32, contiguous, in place."""
        places, factors, amounts = [], [], []
        for row, sequence in enumerate(sequences):
            params = sequence.params
            if not has_penalties(params):
                continue
            used = self._used_by(sequence)
            counts = used.output_counts
            places.append(used.token_ids + row * scores.shape[-1])
            penalty = np.float32(params.repetition_penalty)
            factors.append(np.where(used.is_repeated, penalty, np.float32(1)))
            amounts.append(
                params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
            )
        if not places:
            return
        where = on_device(np.concatenate(places), torch.int64, scores.device)
        factor = on_device(np.concatenate(factors), torch.float32, scores.device)
        amount = on_device(np.concatenate(amounts), torch.float32, scores.device)
        flat = scores.view(-1)
        used_scores = flat.index_select(0, where)
        repeated = torch.where(used_scores > 0, used_scores / factor, used_scores * factor)
        flat.index_copy_(0, where, repeated - amount)

    def _used_by(self, sequence: Sequence) -> UsedTokens:
        used = self._used.get(sequence.sequence_id)
        if used is None:
            used = self._used[sequence.sequence_id] = UsedTokens(sequence)
        return used


def has_penalties(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )


def needs_sampler(sequence: Sequence) -> bool:
    """Whether the answer may be another token than the one with the largest raw logit, grammars
    aside."""
    params = sequence.params
    return (
        not params.is_greedy
        or params.thinking_limit is not None
        or _has_logits_processors(sequence)
    )


def is_adjusted(sequence: Sequence) -> bool:
    """Whether anything is added to its logits."""
    has_mask = sequence.grammar is not None and sequence.grammar.is_active
    return has_mask or _has_logits_processors(sequence)


def is_refused(token_id: int, sequence: Sequence) -> bool:
    """Whether the grammar forbids the largest raw logit's token. That is rare for a model that
    follows its format, and otherwise the row needs no mask."""
    if sequence.grammar is None or needs_sampler(sequence):
        return False
    return not sequence.grammar.allows(token_id)


def is_free_of_host(sequence: Sequence) -> bool:
    """Whether its next token, and how it is chosen, need nothing that the host learns from the
    tokens before."""
    params = sequence.params
    return (
        params.grammar is None
        and params.thinking_limit is None
        and params.top_logprobs is None
        and not _has_logits_processors(sequence)
    )


def _has_logits_processors(sequence: Sequence) -> bool:
    """Whether its parameters favour or forbid tokens."""
    params = sequence.params
    return (
        has_penalties(params)
        or bool(params.logit_bias)
        or sequence.num_output_tokens < params.min_tokens
    )
