"""How many drafts are run: what they bring, and what they cost."""

from __future__ import annotations

from inference.engine.scheduling.sequence import Sequence
from inference.engine.speculation.acceptance import ENGINE_GAIN, PRIORS, Acceptance, match_class
from inference.engine.speculation.draft_length import best_length
from inference.engine.speculation.speculator import (
    MOST_SEQUENCES,
    LookupSpeculator,
    most_drafts,
)
from inference.engine.speculation.step_costs import StepCosts
from inference.protocol.sampling import SamplingParams


class Each:
    """Every row costs as much as the first, times ``part``."""

    def __init__(self, part: float) -> None:
        self._part = part

    def ratio(self, num_rows: int, num_base_rows: int) -> float:
        return (1 + self._part * num_rows) / (1 + self._part * num_base_rows)


def sequence_of(name: str, token_ids: list[int], **params: int) -> Sequence:
    own = SamplingParams(**({"max_tokens": 100} | params))  # type: ignore[arg-type]
    return Sequence(name, token_ids, own, context_tokens=1000, arrival=1, deadline_s=0.0)


def test_rows_that_cost_nothing_are_all_run() -> None:
    assert best_length(1, [(8, 0.5)], Each(0.0), 128) == 8


def test_rows_that_cost_as_much_as_a_step_are_not() -> None:
    """32 sequences fill a device."""
    assert best_length(32, [(8, 0.6)] * 32, Each(10.0), 1024) == 0


def test_sure_proposals_are_longer() -> None:
    costs = Each(0.2)
    doubtful, sure = (best_length(1, [(15, rate)], costs, 128) for rate in (0.4, 0.95))
    assert 0 < doubtful < sure


def test_hopeless_ones_are_not_run() -> None:
    assert best_length(1, [(8, 0.05)], Each(0.1), 128) == 0


def test_a_step_holds_so_many_rows() -> None:
    assert best_length(4, [(8, 1.0)] * 4, Each(0.0), 12) == 2


def test_costs_are_those_of_the_steps_that_were_seen() -> None:
    costs = StepCosts()
    for _ in range(5):
        costs.record(1, 0.010)
        costs.record(4, 0.012)
        costs.record(8, 0.020)
    assert costs.ratio(4, 1) == 0.012 / 0.010
    assert costs.ratio(8, 4) == 0.020 / 0.012
    assert costs.ratio(6, 4) > 1.0


def test_one_step_that_hung_changes_little() -> None:
    costs = StepCosts()
    for _ in range(5):
        costs.record(1, 0.010)
        costs.record(4, 0.010)
    costs.record(4, 10.0)
    assert costs.ratio(4, 1) < 1.2


def test_first_times_do_not_count_against_a_size() -> None:
    costs = StepCosts()
    for step_s in (0.5, 0.010, 0.010):
        costs.record(4, step_s)
    costs.record(1, 0.010)
    assert costs.ratio(4, 1) == 1.0


def test_acceptance_follows_what_comes_and_the_next_sequence_begins_there() -> None:
    engine = Acceptance()
    own = Acceptance(engine)
    for _ in range(50):
        own.record(2, [1, 2, 3], [1, 9, 9])
    assert 0.4 < own.rates[2] < 0.6
    assert own.rates[0] == PRIORS[0]
    assert abs(engine.rates[2] - PRIORS[2]) < 100 * ENGINE_GAIN
    assert Acceptance(engine).rates[2] == engine.rates[2] < PRIORS[2]


def test_longer_matches_are_surer() -> None:
    classes = [match_class(length) for length in (2, 3, 4, 7, 8, 15, 16, 32)]
    assert classes == [0, 0, 1, 1, 2, 2, 3, 3]


def test_drafts_end_before_the_last_token() -> None:
    assert most_drafts(sequence_of("a", [1, 2], max_tokens=5)) == 4
    assert most_drafts(sequence_of("a", [1, 2], max_tokens=1)) == 0
    assert most_drafts(sequence_of("a", [1, 2], max_tokens=9, min_tokens=3)) == 0


def test_a_sequence_that_never_repeats_as_foreseen_is_left_alone() -> None:
    """The same pair is followed by something else each time: soon nothing is run; and proposals
    that are not run still count, so that it is noticed when they come true."""
    speculator = LookupSpeculator()
    for _ in range(5):
        speculator.record_step(1, 0.010)
        speculator.record_step(9, 0.030)
    sequence = sequence_of("a", [1, 2])
    num_drafts = []
    for step in range(60):
        num_drafts.append(len(speculator.drafts([sequence])))
        token_id = (1, 2)[step % 3] if step % 3 < 2 else 100 + step
        speculator.record(sequence, [token_id])
        sequence.token_ids.append(token_id)
    repeated = sequence.token_ids[10:40]
    for token_id in repeated:
        num_drafts.append(len(speculator.drafts([sequence])))
        speculator.record(sequence, [token_id])
        sequence.token_ids.append(token_id)
    assert any(num_drafts[-20:])


def test_many_sequences_are_not_even_looked_at() -> None:
    sequences = [sequence_of(str(i), [1, 2, 1, 2, 1, 2]) for i in range(MOST_SEQUENCES + 1)]
    speculator = LookupSpeculator()
    assert speculator.drafts(sequences) == {}
    assert all(sequence.drafting is None for sequence in sequences)
    assert speculator.drafts(sequences[:1]) != {}
