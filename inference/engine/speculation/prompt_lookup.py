"""Drafts by prompt lookup: finds the longest run of tokens at the end of a text in its earlier part
and proposes the tokens that followed there.

    text   … the quick brown fox … the quick brown ▏
             [  match      ] ─▶ fox …  is proposed
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inference.engine.pace import StepTimeModel, untried_step_time
from inference.engine.sequence import Sequence
from inference.engine.speculation.speculator import (
    DEFAULT_DRAFT_TOKENS,
    MOST_DRAFT_TOKENS,
    MOST_SEQUENCES,
    Acceptance,
    Offer,
    Origin,
    best_length,
    match_class,
    most_drafts,
)

SHORTEST_MATCH = 2
LONG_MATCH = 6
"""Matches of so many tokens are found by one look-up, shorter ones among the last few places."""
LONGEST_MATCH = 32
"""A longer match is no better evidence."""
MOST_PLACES = 8
TOKEN_BITS = 24
"""Token ids are smaller than this allows."""
INDEXED_AT_ONCE = 8192
"""Tokens of a long prompt that one call indexes: a few milliseconds."""
_LONG_MASK = (1 << TOKEN_BITS * LONG_MATCH) - 1
_PAIR_MASK = (1 << TOKEN_BITS * SHORTEST_MATCH) - 1


@dataclass(frozen=True, slots=True)
class Proposal:
    token_ids: list[int]
    match_length: int


class PromptLookup:
    def __init__(self) -> None:
        self._latest: dict[int, int] = {}
        """Two tokens -> the end of the last place, but the text's end, at which they stood."""
        self._latest_long: dict[int, int] = {}
        """``LONG_MATCH`` tokens -> the end of their last place, but the text's end."""
        self._earlier: list[int] = []
        """A place's end -> the end of the place before with the same two tokens; 0: none."""
        self._key = 0
        self._num_indexed = 0

    def propose(self, text: list[int], most: int) -> Proposal | None:
        """``text`` begins with that of the last call."""
        self._index(text)
        if self._num_indexed < len(text) - 1 or len(text) <= SHORTEST_MATCH or most < 1:
            return None
        end, length = self._best_place(text)
        if not length:
            return None
        token_ids = text[end : end + most]
        period = len(text) - end
        while len(token_ids) < most:  # the text repeats itself up to its end
            token_ids.append(token_ids[-period])
        return Proposal(token_ids, length)

    def _index(self, text: list[int]) -> None:
        """Indexes all places but the end of the text, which would find itself."""
        latest, latest_long = self._latest, self._latest_long
        earlier, key = self._earlier, self._key
        first = self._num_indexed
        last = min(len(text) - 1, first + INDEXED_AT_ONCE)
        for end, token_id in enumerate(text[first:last], start=first + 1):
            key = (key << TOKEN_BITS | token_id) & _LONG_MASK
            if end < SHORTEST_MATCH:
                earlier.append(0)
                continue
            pair = key & _PAIR_MASK
            earlier.append(latest.get(pair, 0))
            latest[pair] = end
            if end >= LONG_MATCH:
                latest_long[key] = end
        self._key = key
        self._num_indexed = max(first, last)

    def _best_place(self, text: list[int]) -> tuple[int, int]:
        """Returns (end, length) of the longest match, the last of equals; length 0: none."""
        key = (self._key << TOKEN_BITS | text[-1]) & _LONG_MASK
        if len(text) >= LONG_MATCH and (end := self._latest_long.get(key)):
            return end, _match_length(text, end)
        best_end = best_length = 0
        end = self._latest.get(key & _PAIR_MASK, 0)
        for _ in range(MOST_PLACES):
            if not end:
                break
            if (length := _match_length(text, end)) > best_length:
                best_end, best_length = end, length
            end = self._earlier[end - 1]
        return best_end, best_length


def _match_length(text: list[int], end: int) -> int:
    most, length, last = min(end, LONGEST_MATCH), 0, len(text)
    while length < most and text[end - 1 - length] == text[last - 1 - length]:
        length += 1
    return length


HEAD_TOKENS = 8
"""Put before a client's prediction, so that it is found with the answer's first token.

    [ prompt's end ][ prediction ][ prompt ............. end ][ answer ]
"""


@dataclass(slots=True)
class _Lookup:
    acceptance: Acceptance
    head: list[int]
    text: list[int]
    index: PromptLookup = field(default_factory=PromptLookup)
    proposal: Proposal | None = None
    length_then: int = 0


class LookupSpeculator(Origin):
    name = "prompt lookup"

    def __init__(self, most_tokens: int = DEFAULT_DRAFT_TOKENS) -> None:
        self._most_tokens = min(most_tokens, MOST_DRAFT_TOKENS)
        self._acceptance = Acceptance()
        self._step_time = untried_step_time()

    def offer(self, sequences: list[Sequence]) -> Offer | None:
        if len(sequences) > MOST_SEQUENCES:
            return None
        proposals: dict[Sequence, Proposal] = {}
        candidates: list[tuple[int, float]] = []
        for sequence in sequences:
            most = min(self._most_tokens, most_drafts(sequence))
            if most < 1:
                continue
            lookup = self._lookup_of(sequence)
            proposal = lookup.index.propose(_searched(lookup, sequence), most)
            lookup.proposal, lookup.length_then = proposal, len(sequence.token_ids)
            if proposal is None:
                continue
            proposals[sequence] = proposal
            rate = lookup.acceptance.rates[match_class(proposal.match_length)]
            candidates.append((len(proposal.token_ids), rate))
        length, worth = best_length(len(sequences), candidates, self._step_time)
        if not length:
            return None

        def make() -> dict[Sequence, list[int]]:
            return {sequence: found.token_ids[:length] for sequence, found in proposals.items()}

        return Offer(worth, is_trial=False, make=make)

    def record(self, sequence: Sequence, sampled: list[int]) -> None:
        lookup = sequence.drafting.get(self.name)
        if not isinstance(lookup, _Lookup) or lookup.proposal is None:
            return
        proposal, lookup.proposal = lookup.proposal, None
        if lookup.length_then == len(sequence.token_ids):
            of_class = match_class(proposal.match_length)
            lookup.acceptance.record(of_class, proposal.token_ids, sampled)

    def weigh_by(self, step_time: StepTimeModel) -> None:
        self._step_time = step_time

    def take_drafting_s(self) -> float:
        return 0.0

    def _lookup_of(self, sequence: Sequence) -> _Lookup:
        found = sequence.drafting.get(self.name)
        if not isinstance(found, _Lookup):
            head = _head(sequence)
            found = _Lookup(Acceptance(self._acceptance), head, list(head))
            sequence.drafting[self.name] = found
        return found


def _head(sequence: Sequence) -> list[int]:
    if not sequence.prediction:
        return []
    num_prompt_tokens = sequence.num_prompt_tokens
    end = sequence.token_ids[max(0, num_prompt_tokens - HEAD_TOKENS) : num_prompt_tokens]
    return [*end, *sequence.prediction]


def _searched(lookup: _Lookup, sequence: Sequence) -> list[int]:
    if not lookup.head:
        return sequence.token_ids
    lookup.text += sequence.token_ids[len(lookup.text) - len(lookup.head) :]
    return lookup.text
