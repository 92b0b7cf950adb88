"""Runs every measurement on all subjects in alternation, and keeps all readings.

Rounds whose order turns each time (a, b, c, c, b, a, …) spread the machine's variations, and what
comes first, over all subjects; the report has medians, and the medians of the rounds' ratios.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.subject import INTERPRETER_MEMORY, MEMORY, SubjectError
from benchmarks.workload import DECODE_CONCURRENCIES, PREFILL_LENGTHS, PREFIX_TOKENS

MEMORY_ROW = "memory, resident"
INTERPRETER_ROW = "memory, interpreter"


@dataclass(frozen=True, slots=True)
class Measurement:
    """``name`` is for the report; ``question`` is sent to a subject."""

    name: str
    unit: str
    question: dict[str, object]


def measurements() -> Iterator[Measurement]:
    for concurrency in DECODE_CONCURRENCIES:
        question = {"measure": "decode", "concurrency": concurrency}
        yield Measurement(f"decode, {concurrency} at once", "tok/s", question)
    for length in PREFILL_LENGTHS:
        yield Measurement(
            f"prefill, {length} tokens", "tok/s", {"measure": "prefill", "num_tokens": length}
        )
    question = {"measure": "time_to_first_token", "num_tokens": PREFIX_TOKENS}
    yield Measurement(f"TTFT, {PREFIX_TOKENS} tokens, cold", "s", question)
    yield Measurement(MEMORY_ROW, "MiB", {"measure": MEMORY})
    yield Measurement(INTERPRETER_ROW, "MiB", {"measure": INTERPRETER_MEMORY})


def warm_name(cold_name: str) -> str:
    return cold_name.replace("cold", "prefix-warm")


@dataclass(slots=True)
class Results:
    """``readings[measurement][subject]``, in the order they were taken."""

    subjects: dict[str, str]
    units: dict[str, str] = field(default_factory=dict)
    readings: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    """Why subjects did not last, by their kinds."""

    def add(self, name: str, unit: str, subject: str, value: float) -> None:
        self.units[name] = unit
        self.readings.setdefault(name, {}).setdefault(subject, []).append(value)

    def median(self, name: str, subject: str) -> float | None:
        values = self.readings.get(name, {}).get(subject)
        return statistics.median(values) if values else None

    def median_ratio(self, name: str, subject: str, other: str) -> float | None:
        """The median of the rounds' ratios of ``subject``'s reading to ``other``'s, which a slow
        moment changes least."""
        found = self.readings.get(name, {})
        pairs = zip(found.get(subject, []), found.get(other, []), strict=False)
        ratios = [one / two for one, two in pairs if one and two]
        return statistics.median(ratios) if ratios else None


class Process(Protocol):
    """The used part of ``SubjectProcess``."""

    kind: str
    description: str

    def ask(self, **question: Any) -> Any: ...

    def close(self) -> None: ...


def run(
    subjects: Sequence[Process],
    results: Results,
    *,
    measurements: Sequence[Measurement],
    num_rounds: int,
    on_reading: Callable[[str, str, float], None],
) -> None:
    """Round 0 warms up and is discarded. Each (measurement, round) has its own prompts, the same
    for all subjects. Where a subject ends, the others go on."""
    for round_number in range(num_rounds + 1):
        for index, measurement in enumerate(measurements):
            for subject in subjects[:: 1 if round_number % 2 else -1]:
                if subject.kind in results.ended:
                    continue
                seed = 1000 * round_number + index
                try:
                    answer = subject.ask(**measurement.question, seed=seed)
                except SubjectError as error:
                    results.ended[subject.kind] = f"{error}, asked for {measurement.name}"
                    continue
                for name, value in _named(measurement, answer):
                    on_reading(name, subject.kind, value)
                    if round_number > 0:
                        results.add(name, measurement.unit, subject.kind, value)


def _named(measurement: Measurement, answer: object) -> Iterator[tuple[str, float]]:
    if isinstance(answer, list):
        cold_s, warm_s = answer
        yield measurement.name, cold_s
        yield warm_name(measurement.name), warm_s
    elif isinstance(answer, int | float):
        yield measurement.name, float(answer)
