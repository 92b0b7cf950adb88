"""Logits processors: penalties of used tokens, logit_bias, grammar masks and min_tokens, for all
rows at once; and the thinking budget, which forces a token.

As in vLLM: the repetition penalty looks at prompt and output, the other two at the output. As in
llama.cpp the repetition penalty may look at the last tokens alone.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt
import torch
from llguidance.numpy import allocate_token_bitmask

from inference.engine.drawing import Drawer
from inference.engine.grammars import GrammarState
from inference.engine.sequence import Sequence
from inference.engine.step import RowEnd
from inference.models.step_input import on_device
from inference.protocol.engine import SamplingParams, ThinkingLimit


class UsedTokens:
    """A few hundred tokens: penalties cost no more for a larger vocabulary."""

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
        return self._output_counts[: len(self._place_of)]

    @property
    def is_repeated(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        num_used = len(self._place_of)
        if self._window is None:
            return np.ones(num_used, dtype=np.bool_)
        return self._window_counts[:num_used] > 0

    def add(self, token_id: int) -> None:
        place = self._place(token_id)  # first: it may replace the array
        self._output_counts[place] += 1
        self._see(token_id)

    def _see(self, token_id: int) -> None:
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
    def __init__(self) -> None:
        self._used: dict[str, UsedTokens] = {}

    def add(self, sequences: list[Sequence], token_ids: list[int]) -> None:
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
    """Whether another token than the largest raw logit's may be sampled, grammars aside."""
    params = sequence.params
    return (
        not params.is_greedy
        or params.thinking_limit is not None
        or _has_logits_processors(sequence)
    )


def is_adjusted(sequence: Sequence) -> bool:
    has_mask = sequence.grammar is not None and sequence.grammar.is_active
    return has_mask or _has_logits_processors(sequence)


def is_refused(token_id: int, sequence: Sequence) -> bool:
    """Rarely true for a model that follows its format, and otherwise the row needs no mask."""
    if sequence.grammar is None or needs_sampler(sequence):
        return False
    return not sequence.grammar.allows(token_id)


def is_free_of_host(sequence: Sequence) -> bool:
    """Whether its next token can be sampled before the host has read the tokens before it."""
    params = sequence.params
    return (
        params.grammar is None
        and params.thinking_limit is None
        and params.top_logprobs is None
        and not _has_logits_processors(sequence)
    )


def _has_logits_processors(sequence: Sequence) -> bool:
    params = sequence.params
    return (
        has_penalties(params)
        or bool(params.logit_bias)
        or sequence.num_output_tokens < params.min_tokens
    )


def add_bias(scores: torch.Tensor, sequences: list[Sequence]) -> None:
    """``scores`` (num_sequences, vocab_size) float32, contiguous, in place."""
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
    """In place; not where the grammar leaves nothing but a stop token."""
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


def apply_masks(
    scores: torch.Tensor, sequences: list[Sequence], drawer: Drawer
) -> dict[int, RowEnd]:
    """``scores`` (num_sequences, vocab_size) float32, in place. Returns the rows that can only
    stop, and those that cannot go on: the token sampled for them means nothing."""
    bound = [
        (row, sequence, sequence.grammar)
        for row, sequence in enumerate(sequences)
        if sequence.grammar is not None and sequence.grammar.is_active
    ]
    if not bound:
        return {}
    words = allocate_token_bitmask(len(bound), scores.shape[-1])
    # One after the other: llguidance's thread pool was seen to deadlock beside ours.
    for index, (_, _, state) in enumerate(bound):
        state.fill_mask(words, index)
    bits = words.view(np.uint8)
    ends = {
        row: end
        for row_bits, (row, sequence, state) in zip(bits, bound, strict=True)
        if (end := _settle_end(row_bits, sequence, state)) is not None
    }
    drawer.forbid(scores, [row for row, _, _ in bound], torch.from_numpy(bits))
    return ends


def _settle_end(
    bits: npt.NDArray[np.uint8], sequence: Sequence, state: GrammarState
) -> RowEnd | None:
    """Edits ``bits`` in place. llguidance allows all end tokens where the grammar may end; the
    sequence may sample those that stop it (none, when it ignores them)."""
    first = state.end_ids[0]
    may_end = bool(bits[first >> 3] >> (first & 7) & 1)
    for token_id in state.end_ids:
        bits[token_id >> 3] &= 0xFF ^ (1 << (token_id & 7))
    if bits.any():
        for token_id in sequence.stop_ids.intersection(state.end_ids) if may_end else ():
            bits[token_id >> 3] |= 1 << (token_id & 7)
        return None
    bits[:] = 0xFF
    if may_end and state.problem is None:
        return RowEnd()
    nothing = "no token of the model can continue the output here"
    return RowEnd.of_grammar(state.problem or nothing)


class ThinkingBudget:
    """A block that is opened again continues the last one's count."""

    def __init__(self, limit: ThinkingLimit) -> None:
        self._limit = limit
        self._is_open = limit.start_token_id is None
        self._last_token_id: int | None = None
        self._num_tokens = 0

    @property
    def forced_token(self) -> int | None:
        is_spent = self._is_open and self._num_tokens >= self._limit.max_tokens
        return self._limit.end_token_id if is_spent else None

    def advance(self, token_id: int) -> None:
        if self._is_open:
            self._is_open = token_id != self._limit.end_token_id
            self._num_tokens += self._is_open
        else:
            follows = self._limit.follows_token_id
            is_there = follows is None or follows == self._last_token_id
            self._is_open = is_there and token_id == self._limit.start_token_id
        self._last_token_id = token_id
