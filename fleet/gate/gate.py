"""The gate: waits, then asks. Effects are handed in."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fleet.gate.asking import Post, Probe, RefusedError, problem_of
from fleet.gate.waiting import Loaded, failures, missing, ready_now

LOOK_EVERY_S = 2.0
ABSENT_LIMIT_S = 30.0
"""How long a server that has never answered is waited for. One that has is waited for as loads
are."""
NO_SERVER = (0, 502, 503, 504)
"""Statuses of a server, or of a proxy before it, that is not there now."""
NOTHING_KNOWN: Mapping[str, Any] = {"is_live": False, "neurons": [], "jobs": []}
MAX_TRIES = 12
"""Questions to a model of several neurons until one of them came to the neuron in question."""
NUMBERED = "{question} (question {number})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """How the gate sees the fleet."""

    overview: Callable[[], Mapping[str, Any]]
    """Raises ``RefusedError``."""
    last_used: Callable[[Loaded], str | None]
    """When that replica last had work; changes with each request."""
    embedding_models: Callable[[], frozenset[str]]
    """Names of the ready models that make embeddings."""
    post: Post


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    fleet: Fleet
    probe: Probe
    neuron: str | None
    """``None``: each model is asked once, wherever it is answered."""
    ready_limit_s: float
    model: str | None = None
    """``None``: all that are loaded."""
    report: Callable[[str], object]
    clock: Callable[[], float] = field(default=time.monotonic)
    sleep: Callable[[float], object] = field(default=time.sleep)

    def problems(self, expected: Sequence[Loaded]) -> list[str]:
        """Empty: green."""
        if closed := self._wait(expected):
            return closed
        loaded = [
            one
            for one in ready_now(self.fleet.overview(), self.neuron)
            if self.model in (None, one.model)
        ]
        embedding = self.fleet.embedding_models() if loaded else frozenset()
        if not loaded:
            where = f" on {self.neuron}" if self.neuron else ""
            self.report(f"no model is loaded{where}: nothing to probe")
        problems = []
        for one in loaded if self.neuron else _one_of_each(loaded):
            problem = self._ask(one, is_embedding=one.model in embedding)
            shown = str(one) if self.neuron else one.model
            self.report(f"{shown}: {problem or 'green'}")
            if problem:
                problems.append(f"{shown}: {problem}")
        return problems

    def _wait(self, expected: Sequence[Loaded]) -> list[str]:
        deadline_s = self.clock() + self.ready_limit_s
        absent_at_s = self.clock() + min(ABSENT_LIMIT_S, self.ready_limit_s)
        reported: list[str] = []
        while True:
            overview, absence = self._look()
            if absence is None:
                absent_at_s = deadline_s
            elif self.clock() >= absent_at_s:
                return [absence]
            if lost := failures(overview, self.neuron):
                return lost
            reasons = [absence] if absence else missing(overview, expected, self.neuron)
            if not reasons:
                return []
            if reasons != reported:
                self.report(f"waiting: {'; '.join(reasons)}")
                reported = reasons
            if self.clock() >= deadline_s:
                return [f"not ready in {self.ready_limit_s:.0f} s: {reason}" for reason in reasons]
            self.sleep(LOOK_EVERY_S)

    def _look(self) -> tuple[Mapping[str, Any], str | None]:
        """The fleet, and why the server does not answer: it may be restarted itself."""
        try:
            return self.fleet.overview(), None
        except RefusedError as error:
            if error.status not in NO_SERVER:
                raise
            return NOTHING_KNOWN, str(error)

    def _ask(self, one: Loaded, *, is_embedding: bool) -> str | None:
        if self.neuron is None:
            return self._problem(one, self.probe, is_embedding)
        before = self.fleet.last_used(one)
        for number in itertools.count(1):
            probe = self.probe
            if number > 1:
                # Other words: the first ones' prefix may be at home with another neuron.
                question = NUMBERED.format(question=self.probe.question, number=number)
                probe = replace(self.probe, question=question)
            if problem := self._problem(one, probe, is_embedding):
                return problem
            if self._was_used(one, before):
                return None
            if number == MAX_TRIES:
                return f"{number} questions were answered, and none of them there"
        raise AssertionError("counting does not end")

    def _was_used(self, one: Loaded, before: str | None) -> bool:
        """Whether the model's last use changed; a neuron reports it with its next heartbeat."""
        for _ in range(3):
            if self.fleet.last_used(one) != before:
                return True
            self.sleep(1.0)
        return False

    def _problem(self, one: Loaded, probe: Probe, is_embedding: bool) -> str | None:
        return problem_of(
            one.model,
            probe,
            self.fleet.post,
            is_embedding=is_embedding,
            clock=self.clock,
            sleep=self.sleep,
        )


def _one_of_each(loaded: Sequence[Loaded]) -> list[Loaded]:
    by_model = {one.model: one for one in reversed(loaded)}
    return sorted(by_model.values(), key=lambda one: one.model)
