"""The interface of drafting, the number of drafts that pay, and the choice between two origins.

schedule ─▶ propose ─▶ as long as it pays ─▶ drafts, verified in the step
commit   ◀─ the tokens, compared with the proposal, also where it was not run
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from inference.engine.pace import StepTimeModel, untried_step_time
from inference.engine.sequence import Sequence

if TYPE_CHECKING:
    from inference.engine.speculation.draft_runner import PredictorRunner

DEFAULT_DRAFT_TOKENS = 8
MOST_DRAFT_TOKENS = 16
"""Within a block, so that a step needs one more block of a sequence at most."""
MOST_SEQUENCES = 32
"""The most decoding sequences with drafts: more rows fill the device already."""
MOST_ROWS = 128
MOST_LAGGING = 8
"""Rows that a step runs once more for a recurrent state. One that lags further has no drafts
until it has caught up, which takes one step."""


class Speculator(Protocol):
    def drafts(self, sequences: list[Sequence]) -> dict[Sequence, list[int]]:
        """``sequences`` decode next. No draft reaches past a sequence's last allowed token."""
        ...

    def expects_drafts(self, sequences: list[Sequence]) -> bool:
        """Whether ``drafts`` would return some, as far as is known one token before."""
        ...

    def record(self, sequence: Sequence, sampled: list[int]) -> None:
        """``sampled``: the step's tokens, about to be added to the sequence."""
        ...

    def weigh_by(self, step_time: StepTimeModel) -> None: ...

    @property
    def status(self) -> str:
        """A sentence for people; empty where there is one origin."""
        ...

    def take_drafting_s(self) -> float:
        """Returns the seconds that another model has drafted since the last call."""
        ...


@dataclass(frozen=True, slots=True)
class Offer:
    worth: float
    """The expected speed-up: tokens for a step's time, against a step without drafts."""
    is_trial: bool
    """A trial is run for its measurement, whatever it is worth."""
    make: Callable[[], dict[Sequence, list[int]]]


class Origin(Speculator, Protocol):
    name: str
    status: str = ""

    def offer(self, sequences: list[Sequence]) -> Offer | None:
        """The offered drafts are still to be made. ``None``: they would not pay."""
        ...

    def drafts(self, sequences: list[Sequence]) -> dict[Sequence, list[int]]:
        offer = self.offer(sequences)
        return {} if offer is None else offer.make()

    def expects_drafts(self, sequences: list[Sequence]) -> bool:
        return self.offer(sequences) is not None


def most_drafts(sequence: Sequence) -> int:
    """Beside the step's own token. An answer's ``min_tokens`` are sampled one by one."""
    if sequence.num_output_tokens < sequence.params.min_tokens:
        return 0
    if sequence.num_lagging >= MOST_LAGGING:
        return 0
    return sequence.max_length - len(sequence.token_ids) - 1


MATCH_CLASSES = (4, 8, 16)
PRIORS = (0.3, 0.5, 0.7, 0.85)
"""The assumed share of right drafts of each class before any is known."""
GAIN = 0.125
ENGINE_GAIN = 0.01
"""How far one token moves the estimate that the next sequence starts from."""


def match_class(match_length: int) -> int:
    return sum(match_length >= limit for limit in MATCH_CLASSES)


class Acceptance:
    """By class of match length. Starts from ``parent``'s rates, which follow it more slowly."""

    def __init__(self, parent: Acceptance | None = None) -> None:
        self._parent = parent
        self._gain = GAIN if parent is not None else ENGINE_GAIN
        self.rates: list[float] = list(parent.rates if parent is not None else PRIORS)

    def record(self, of_class: int, proposed: Ordered[int], sampled: Ordered[int]) -> None:
        for guess, token_id in zip(proposed, sampled, strict=False):
            is_right = guess == token_id
            self._move(of_class, is_right)
            if not is_right:
                break

    def _move(self, of_class: int, is_right: bool) -> None:
        self.rates[of_class] += self._gain * (is_right - self.rates[of_class])
        if self._parent is not None:
            self._parent._move(of_class, is_right)


LENGTHS = (1, 2, 3, 5, 7, 11, 15)
WORTH = 1.03
"""The least expected speed-up by drafts: estimates are uncertain."""


class Costs(Protocol):
    def ratio(self, num_rows: int, num_base_rows: int) -> float: ...


def best_length(
    num_rows: int, candidates: Ordered[tuple[int, float]], costs: Costs
) -> tuple[int, float]:
    """Returns the length, 0 if none pays, and its worth: see ``Offer``. ``candidates``: each
    proposal's length and the chance of each of its tokens."""
    best, best_worth = 0, WORTH
    longest = max((length for length, _ in candidates), default=0)
    for length in (*(some for some in LENGTHS if some < longest), longest):
        drafted = sum(min(length, own) for own, _ in candidates)
        if drafted == 0 or num_rows + drafted > MOST_ROWS:
            break
        gained = sum(_expected(min(length, own), rate) for own, rate in candidates)
        worth = (num_rows + gained) / num_rows / costs.ratio(num_rows + drafted, num_rows)
        if worth > best_worth:
            best, best_worth = length, worth
    return best, best_worth


def _expected(length: int, rate: float) -> float:
    if rate >= 1.0:
        return float(length)
    return rate * (1.0 - rate**length) / (1.0 - rate)


IDLE_STEPS = 512
"""The predictor rests after so many steps in a row in which its drafts did not pay."""
REST_STEPS = 8192
"""So many steps later it follows new sequences and is tried again."""
STATUS_STEPS = 256
STATUS_PERCENT = 10
"""Shares in the status are rounded to this, so that it changes seldom."""


class AutomaticSpeculator:
    """Chooses the origin of each step's drafts by its expected gain and measured cost.

    prompt lookup ──▶ offer ─┐
                             ├─▶ the one that is worth more ─▶ drafts, verified in the step
    predictor ──────▶ offer ─┘       none offered: a step without drafts
       └ follows every step, at a cost even where nothing is drafted: it rests where that does
         not pay
    """

    def __init__(self, lookup: Origin, predicted: Origin, follower: PredictorRunner) -> None:
        self._lookup = lookup
        self._predicted = predicted
        self._follower = follower
        self._step_time = untried_step_time()
        self._num_idle_steps = 0
        self._num_rest_steps = 0
        self._status = _Status()

    @property
    def status(self) -> str:
        return self._status.words

    def drafts(self, sequences: list[Sequence]) -> dict[Sequence, list[int]]:
        self._count_rest()
        chosen = self._chosen(sequences)
        self._count_idle(chosen, len(sequences))
        if chosen is None:
            self._status.add_step("", {})
            return {}
        origin, offer = chosen
        drafts = offer.make()
        self._status.add_step(origin.name if drafts else "", drafts)
        return drafts

    def expects_drafts(self, sequences: list[Sequence]) -> bool:
        return self._chosen(sequences) is not None

    def record(self, sequence: Sequence, sampled: list[int]) -> None:
        for origin in (self._lookup, self._predicted):
            origin.record(sequence, sampled)
        self._status.add_accepted(sequence, len(sampled) - 1)

    def weigh_by(self, step_time: StepTimeModel) -> None:
        self._step_time = step_time
        for origin in (self._lookup, self._predicted):
            origin.weigh_by(step_time)

    def take_drafting_s(self) -> float:
        return self._lookup.take_drafting_s() + self._predicted.take_drafting_s()

    def _chosen(self, sequences: list[Sequence]) -> tuple[Origin, Offer] | None:
        """A trial, which measures, comes first."""
        origins = (self._lookup, self._predicted) if self._follows else (self._lookup,)
        offers = [(origin, origin.offer(sequences)) for origin in origins]
        found = [(origin, offer) for origin, offer in offers if offer is not None]
        return max(found, key=lambda one: (one[1].is_trial, one[1].worth), default=None)

    @property
    def _follows(self) -> bool:
        return self._num_rest_steps == 0

    def _count_rest(self) -> None:
        if self._num_rest_steps:
            self._num_rest_steps -= 1
            if not self._num_rest_steps:
                self._follower.resume()

    def _count_idle(self, chosen: tuple[Origin, Offer] | None, num_rows: int) -> None:
        if not self._follows:
            return
        if chosen is not None and chosen[0] is self._predicted and self._pays(chosen[1], num_rows):
            self._num_idle_steps = 0
            return
        self._num_idle_steps += 1
        if self._num_idle_steps >= IDLE_STEPS:
            self._num_idle_steps, self._num_rest_steps = 0, REST_STEPS
            self._follower.rest()

    def _pays(self, offer: Offer, num_rows: int) -> bool:
        step_s = self._step_time.seconds(num_rows, 0)
        share = min(1.0, self._follower.following_s / step_s) if step_s > 0 else 0.0
        return not offer.is_trial and offer.worth * (1.0 - share) > WORTH


class _Status:
    def __init__(self) -> None:
        self.words = ""
        self._num_steps = 0
        self._steps: Counter[str] = Counter()
        self._drafted: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()
        self._name = ""
        self._drafts: dict[Sequence, list[int]] = {}

    def add_step(self, name: str, drafts: dict[Sequence, list[int]]) -> None:
        if self._num_steps == STATUS_STEPS:
            self._write()
        self._num_steps += 1
        self._name, self._drafts = name, drafts
        if name:
            self._steps[name] += 1
            self._drafted[name] += sum(map(len, drafts.values()))

    def add_accepted(self, sequence: Sequence, num_accepted: int) -> None:
        if sequence in self._drafts:
            self._accepted[self._name] += num_accepted

    def _write(self) -> None:
        parts = [
            f"{name} in {_percent(count, self._num_steps)} ({_percent(right, drafted)} right)"
            for name, count in self._steps.most_common()
            if (drafted := self._drafted[name])
            for right in (self._accepted[name],)
        ]
        without = self._num_steps - self._steps.total()
        parts.append(f"none in {_percent(without, self._num_steps)}")
        self.words = f"of the last steps, {', '.join(parts)}"
        self._num_steps = 0
        for counter in (self._steps, self._drafted, self._accepted):
            counter.clear()


def _percent(part: int, whole: int) -> str:
    return f"{round(100 * part / whole / STATUS_PERCENT) * STATUS_PERCENT} %"
