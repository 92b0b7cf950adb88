"""Chooses the origin of each step's drafts by its expected gain and measured cost on this device:
prompt lookup, the model's predictor, or none.

    prompt lookup ──▶ offer ─┐
                             ├─▶ the one that is worth more ─▶ drafts, verified in the step
    predictor ──────▶ offer ─┘       none offered: a step without drafts
       └ follows every step, at a cost even where nothing is drafted: it rests where that does
         not pay

Knows no tensors.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from inference.engine.scheduling.sequence import Sequence
from inference.engine.scheduling.step_time import StepTimeModel, untried_step_time
from inference.engine.speculation.speculator import WORTH, Offer, Origin

IDLE_STEPS = 512
"""The predictor rests after so many steps in a row in which its drafts did not pay."""
REST_STEPS = 8192
"""So many steps later it follows new sequences and is tried again."""
STATUS_STEPS = 256
"""The status describes so many steps, and is written after as many."""
STATUS_PERCENT = 10
"""Shares in the status are rounded to this, so that it changes seldom."""


class Follower(Protocol):
    @property
    def following_s(self) -> float:
        """Seconds that it takes of a step without prompts, measured on the host."""
        ...

    def rest(self) -> None:
        """Follows no step until ``resume``."""
        ...

    def resume(self) -> None:
        """Follows sequences that begin from now on."""
        ...


class AutomaticSpeculator:
    def __init__(self, lookup: Origin, predicted: Origin, follower: Follower) -> None:
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
        """Returns the best offer. A trial, which measures, comes first."""
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
        """``name``: the origin's; empty without drafts."""
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
