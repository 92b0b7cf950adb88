"""Which sequences get drafts in the next step, and how many: as many as pay, by how often a
sequence's proposals were right and by what more rows cost on this device.

    schedule ─▶ propose ─▶ as long as it pays ─▶ drafts, verified in the step
    commit   ◀─ the tokens, compared with the proposal, also where it was not run

Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from inference.engine.scheduling.sequence import Sequence
from inference.engine.scheduling.step_time import StepTimeModel, untried_step_time
from inference.engine.speculation.acceptance import Acceptance, match_class
from inference.engine.speculation.draft_length import best_length, worth_of
from inference.engine.speculation.prompt_lookup import PromptLookup, Proposal

DEFAULT_DRAFT_TOKENS = 8
MOST_DRAFT_TOKENS = 16
"""Within a block, so that a step needs one more block of a sequence at most."""
MOST_SEQUENCES = 32
"""The most decoding sequences with drafts: more rows fill the device already."""
MOST_ROWS = 128
"""The most rows of a step with drafts."""
MOST_LAGGING = 8
"""Rows that a step runs once more for a recurrent state. One that lags further has no drafts
until it has caught up, which takes one step."""


class Speculator(Protocol):
    """What a scheduler asks for drafts."""

    def drafts(self, sequences: list[Sequence]) -> dict[Sequence, list[int]]:
        """Returns drafts for those of ``sequences``, all of which decode in the next step, for
        which drafts pay. None reaches past the sequence's last allowed token."""
        ...

    def expects_drafts(self, sequences: list[Sequence]) -> bool:
        """Whether ``drafts`` would have some, as far as is known one token before."""
        ...

    def record(self, sequence: Sequence, came: list[int]) -> None:
        """``came``: the step's tokens, about to be added to the sequence."""
        ...

    def weigh_by(self, step_time: StepTimeModel) -> None:
        """Weighs what drafts bring by what more rows of a step cost. The model is the engine's,
        which fits it."""
        ...

    @property
    def status(self) -> str:
        """A sentence for people: which origins were chosen lately; empty where there is one."""
        ...

    def take_drafting_s(self) -> float:
        """How long another model has drafted since the last call."""
        ...


@dataclass(frozen=True, slots=True)
class Offer:
    """Drafts that an origin would make for a step."""

    worth: float
    """What they are expected to bring: tokens for a step's time, against a step without drafts."""
    is_trial: bool
    """Whether they are made to measure how many come true, though they are not known to pay."""
    make: Callable[[], dict[Sequence, list[int]]]


class Origin(Speculator, Protocol):
    """A source of drafts: a ``Speculator`` that can be weighed against others."""

    name: str
    """The name in the load report and in the status."""

    def offer(self, sequences: list[Sequence]) -> Offer | None:
        """Returns drafts for ``sequences``, all of which decode in the next step, that are still to
        be made; ``None``: they would not pay."""
        ...


HEAD_TOKENS = 8
"""The number of tokens at the prompt's end that stand before a client's prediction: the answer
begins behind them too."""


@dataclass(slots=True)
class _Lookup:
    """Kept with a sequence."""

    acceptance: Acceptance
    head: list[int]
    """Stands before the sequence's own text: what its client expects, or nothing."""
    text: list[int]
    """The searched text, where there is a head."""
    index: PromptLookup = field(default_factory=PromptLookup)
    proposal: Proposal | None = None
    """The proposed continuation, whether or not it is run."""
    length_then: int = 0
    """The sequence's length when that was proposed."""


class LookupSpeculator:
    """An ``Origin``: drafts from the sequence's own text, and from what its client expects."""

    name = "prompt lookup"
    status = ""

    def __init__(self, most_tokens: int = DEFAULT_DRAFT_TOKENS) -> None:
        self._most_tokens = min(most_tokens, MOST_DRAFT_TOKENS)
        self._acceptance = Acceptance()
        self._step_time = untried_step_time()

    def drafts(self, sequences: list[Sequence]) -> dict[Sequence, list[int]]:
        offer = self.offer(sequences)
        return {} if offer is None else offer.make()

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
        num_rows = len(sequences)
        length = best_length(num_rows, candidates, self._step_time, MOST_ROWS)
        if not length:
            return None
        worth = worth_of(length, num_rows, candidates, self._step_time)

        def make() -> dict[Sequence, list[int]]:
            return {sequence: found.token_ids[:length] for sequence, found in proposals.items()}

        return Offer(worth, is_trial=False, make=make)

    def expects_drafts(self, sequences: list[Sequence]) -> bool:
        return self.offer(sequences) is not None

    def record(self, sequence: Sequence, came: list[int]) -> None:
        lookup = sequence.drafting.get(self.name)
        if not isinstance(lookup, _Lookup) or lookup.proposal is None:
            return
        proposal, lookup.proposal = lookup.proposal, None
        if lookup.length_then == len(sequence.token_ids):
            of_class = match_class(proposal.match_length)
            lookup.acceptance.record(of_class, proposal.token_ids, came)

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
    """What a client expects follows the end of the prompt, so that it is found with the answer's
    first token.

        [ prompt's end ][ prediction ][ prompt ............. end ][ answer ]
    """
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


def most_drafts(sequence: Sequence) -> int:
    """Tokens that a step may draft for it: the step's own token comes on top. What an answer must
    not end before is sampled one by one."""
    if sequence.num_output_tokens < sequence.params.min_tokens:
        return 0
    if sequence.num_lagging >= MOST_LAGGING:
        return 0
    return sequence.max_length - len(sequence.token_ids) - 1
