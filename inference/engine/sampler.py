"""Chooses one token per row of logits, on their device, and waits for the device once. A token that
a grammar refuses and log probabilities cost a second wait.

A row's token depends on its own logits, parameters and random stream, never on its batch mates.

    logits ─ penalties ─ logit_bias ─ grammar ─ min_tokens ─▶ scores ─ temperature, filters ─▶ token
"""

from __future__ import annotations

import random
from collections.abc import Collection
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

import torch

from inference.engine.drawing import Drawer, TorchDrawer, draw_of, row_pieces
from inference.engine.logits_processors import (
    ThinkingBudget,
    TokenCounts,
    add_bias,
    apply_masks,
    forbid_early_stops,
    is_adjusted,
    is_refused,
    needs_sampler,
)
from inference.engine.sequence import Sequence
from inference.engine.step import PrefillChunk, RowEnd, Sampled
from inference.models.step_input import HostCopy, on_device, read_back, rows_of
from inference.protocol.engine import TokenLogprob

NUM_RANDOM_BITS = 24
"""float32 holds so many below 1 exactly."""


@dataclass(frozen=True, slots=True)
class _SampledRows:
    rows: list[int]
    """Row indices into the step's logits."""
    ends: dict[int, RowEnd]
    token_ids: torch.Tensor
    """(num_rows,) int64."""


@dataclass(frozen=True, slots=True)
class SampledTokens:
    sequences: list[Sequence]
    logits: torch.Tensor
    greedy: torch.Tensor
    """Each row's largest logit's token, (num_rows,) int64."""
    choice: _SampledRows
    num_ahead: int
    """A sequence's tokens not in its ``token_ids`` yet: on the device, or accepted drafts."""
    host_copy: HostCopy

    def token_ids(self) -> torch.Tensor:
        """(num_rows,) int64, on the device; the sampled ones where ``is_free_of_host``."""
        if not self.choice.rows:
            return self.greedy
        where = on_device(self.choice.rows, torch.int64, self.greedy.device)
        return self.greedy.index_copy(0, where, self.choice.token_ids)


class Sampler:
    def __init__(self, drawer: Drawer | None = None) -> None:
        self._drawer = drawer or TorchDrawer()
        self._random: dict[str, RandomStream] = {}
        self._counts = TokenCounts()
        self._thinking: dict[str, ThinkingBudget] = {}

    def sample(self, sequences: list[Sequence], logits: torch.Tensor) -> Sampled:
        """``logits`` (num_sequences, vocab_size) float32; read only. Changes no state before the
        last operation that may raise, so that a step can be tried again."""
        return self.read(self.choose(sequences, logits))

    @torch.inference_mode()
    def choose(
        self, sequences: list[Sequence], logits: torch.Tensor, *, num_ahead: int = 0
    ) -> SampledTokens:
        """Waits only where the drawer does. ``num_ahead``: see ``SampledTokens``; unread tokens
        may be among them only where ``is_free_of_host``."""
        greedy, are_finite = self._likeliest(logits)
        rows = [row for row, sequence in enumerate(sequences) if needs_sampler(sequence)]
        choice = self._choose(sequences, logits, greedy, rows, num_ahead)
        host_copy = HostCopy([are_finite, greedy, choice.token_ids])
        return SampledTokens(sequences, logits, greedy, choice, num_ahead, host_copy)

    @torch.inference_mode()
    def read(self, unread: SampledTokens) -> Sampled:
        sequences, logits, greedy = unread.sequences, unread.logits, unread.greedy
        are_finite, token_ids, chosen_ids = unread.host_copy.values()
        ends = {
            row: RowEnd.of_numbers(int(logits[row].isfinite().logical_not().sum()))
            for row, is_finite in enumerate(are_finite)
            if not is_finite
        }
        self._settle(sequences, unread.choice, chosen_ids, token_ids, ends)
        refused = [
            row
            for row, sequence in enumerate(sequences)
            if row not in ends and is_refused(token_ids[row], sequence)
        ]
        if refused:
            choice = self._choose(sequences, logits, greedy, refused, unread.num_ahead)
            (chosen_ids,) = read_back([choice.token_ids])
            self._settle(sequences, choice, chosen_ids, token_ids, ends)
        logprobs = self.logprobs(sequences, logits, token_ids, ends)
        self._follow(sequences, token_ids, ends)
        return Sampled(token_ids, ends, logprobs)

    def forget(self, sequence: Sequence) -> None:
        self._random.pop(sequence.sequence_id, None)
        self._counts.forget(sequence.sequence_id)
        self._thinking.pop(sequence.sequence_id, None)

    def _likeliest(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if len(logits) == 0:  # a step of prompt chunks alone
            return logits.new_empty(0, dtype=torch.int64), logits.new_empty(0, dtype=torch.bool)
        return self._drawer.likeliest(logits)

    def _choose(
        self,
        sequences: list[Sequence],
        logits: torch.Tensor,
        greedy: torch.Tensor,
        rows: list[int],
        num_ahead: int,
    ) -> _SampledRows:
        """``greedy``: each row's likeliest token id."""
        if not rows:
            return _SampledRows(rows, {}, greedy[:0])
        chosen = [sequences[row] for row in rows]
        scores, places = logits, rows
        ends: dict[int, RowEnd] = {}
        if any(map(is_adjusted, chosen)):
            scores = logits.clone() if len(rows) == len(logits) else rows_of(logits, rows)
            places = list(range(len(rows)))
            ends = {rows[i]: end for i, end in self._adjust(scores, chosen).items()}
            token_ids = self._drawer.likeliest(scores)[0]
        else:
            token_ids = greedy.index_select(0, on_device(rows, torch.int64, greedy.device))
        drawn = [i for i, sequence in enumerate(chosen) if not sequence.params.is_greedy]
        if drawn:
            draws = [
                draw_of(places[i], chosen[i].params, self._uniform(chosen[i], num_ahead))
                for i in drawn
            ]
            where = on_device(drawn, torch.int64, token_ids.device)
            token_ids = token_ids.index_copy(0, where, self._drawer.draw(scores, draws))
        return _SampledRows(rows, ends, token_ids)

    def _adjust(self, scores: torch.Tensor, sequences: list[Sequence]) -> dict[int, RowEnd]:
        self._counts.penalize(scores, sequences)
        add_bias(scores, sequences)
        ends = apply_masks(scores, sequences, self._drawer)
        forbid_early_stops(scores, sequences)
        return ends

    def _settle(
        self,
        sequences: list[Sequence],
        choice: _SampledRows,
        chosen_ids: list[int],
        token_ids: list[int],
        ends: dict[int, RowEnd],
    ) -> None:
        for row, end in choice.ends.items():
            ends.setdefault(row, end)
        for row, token_id in zip(choice.rows, chosen_ids, strict=True):
            if row not in ends:
                forced = self._forced_token(sequences[row])
                token_ids[row] = token_id if forced is None else forced

    def _forced_token(self, sequence: Sequence) -> int | None:
        """An active grammar decides the next token itself."""
        if sequence.params.thinking_limit is None:
            return None
        if sequence.grammar is not None and sequence.grammar.is_active:
            return None
        return self._thinking_of(sequence).forced_token

    def _follow(
        self, sequences: list[Sequence], token_ids: list[int], ends: dict[int, RowEnd]
    ) -> None:
        """Adds rows whose grammar is complete or was violated to ``ends``."""
        self._counts.add(sequences, token_ids)
        for row, (sequence, token_id) in enumerate(zip(sequences, token_ids, strict=True)):
            if sequence.params.thinking_limit is not None:
                self._thinking_of(sequence).advance(token_id)
            state = sequence.grammar
            if state is None or row in ends:
                continue
            if token_id not in sequence.stop_ids:
                state.advance(token_id)
                if (problem := state.problem) is not None:
                    ends[row] = RowEnd.of_grammar(problem)
                elif state.is_complete:
                    ends[row] = RowEnd(has_token=True)

    def _thinking_of(self, sequence: Sequence) -> ThinkingBudget:
        budget = self._thinking.get(sequence.sequence_id)
        if budget is None:
            assert sequence.params.thinking_limit is not None
            budget = ThinkingBudget(sequence.params.thinking_limit)
            self._thinking[sequence.sequence_id] = budget
        return budget

    def _uniform(self, sequence: Sequence, num_ahead: int) -> float:
        stream = self._random.get(sequence.sequence_id)
        if stream is None:
            stream = self._random[sequence.sequence_id] = RandomStream(sequence.params.seed)
        return stream.uniform(sequence.num_output_tokens + num_ahead)

    def logprobs(
        self,
        sequences: list[Sequence],
        logits: torch.Tensor,
        token_ids: list[int],
        ends: Collection[int],
    ) -> dict[int, TokenLogprob]:
        rows = [
            row
            for row, sequence in enumerate(sequences)
            if sequence.params.top_logprobs is not None and row not in ends
        ]
        if not rows:
            return {}
        chosen = [token_ids[row] for row in rows]
        wanted = [sequences[row].params.top_logprobs or 0 for row in rows]
        return dict(zip(rows, token_logprobs(logits, rows, chosen, wanted), strict=True))


class RandomStream:
    """A number belongs to a place in the output, so a step that is tried again draws the same."""

    def __init__(self, seed: int | None) -> None:
        # Python's generator takes a seed's absolute value; as 64 bits, -1 is not 1.
        self._generator = random.Random(None if seed is None else seed % 2**64)
        self._place = -1
        self._value = 0.0
        self._last = 0.0

    def uniform(self, place: int) -> float:
        """Returns a number in [0, 1) for the output's token at ``place``: the newest place, the one
        before it (the next step may have been launched when a step is tried again), or the next."""
        if place < self._place:
            assert place == self._place - 1
            return self._last
        if place != self._place:
            self._place, self._last = place, self._value
            self._value = self._generator.getrandbits(NUM_RANDOM_BITS) * 2.0**-NUM_RANDOM_BITS
        return self._value


def token_logprobs(
    logits: torch.Tensor,
    rows: list[int],
    token_ids: Ordered[int],
    num_top: Ordered[int],
    *,
    ranks: bool = False,
) -> list[TokenLogprob]:
    """``logits`` (_, vocab_size) float32, of which ``rows`` count. ``ranks``: also ranks in the
    vocabulary."""
    found: list[TokenLogprob] = []
    for piece in row_pieces(len(rows), logits.shape[-1]):
        chosen, most = token_ids[piece], num_top[piece]
        logprobs = torch.log_softmax(rows_of(logits, rows[piece]), dim=-1)
        top = logprobs.topk(min(max(most), logprobs.shape[-1]), dim=-1)
        own = logprobs.gather(1, torch.tensor(chosen, device=logits.device).unsqueeze(1))
        places: list[int] | list[None] = [None] * len(chosen)
        if ranks:
            places = ((logprobs > own).sum(dim=-1) + 1).tolist()
        columns = own.flatten().tolist(), top.indices.tolist(), top.values.tolist()
        found += [
            TokenLogprob(token_id, value, list(zip(ids, best, strict=True))[:count], place)
            for token_id, value, ids, best, count, place in zip(
                chosen, *columns, most, places, strict=True
            )
        ]
    return found


def prompt_logprobs(
    chunks: list[PrefillChunk], logits: torch.Tensor
) -> dict[str, list[TokenLogprob]]:
    """By sequence id. ``logits`` (num_scored, vocab_size) float32, one chunk after the other."""
    found: dict[str, list[TokenLogprob]] = {}
    first_row = 0
    for chunk in chunks:
        if not (scored := chunk.scored):
            continue
        sequence, end_row = chunk.sequence, first_row + len(scored)
        successors = sequence.token_ids[scored.start + 1 : scored.stop + 1]
        num_top = [sequence.params.prompt_logprobs or 0] * len(scored)
        found[sequence.sequence_id] = token_logprobs(
            logits, list(range(first_row, end_row)), successors, num_top, ranks=True
        )
        first_row = end_row
    return found
