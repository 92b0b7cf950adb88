"""What one ended request adds to the series: of the fleet, its model, its neuron and its account.
Pure."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from metering.ledger.entries import FINISHED, Outcome, Settle
from metering.series.figures import ERROR, Figures, in_bucket
from metering.series.kinds import FLEET_NAME, Kind, SeriesKey
from metering.series.steps import MINUTE_S, floor_s

UNKNOWN_MODEL = "-"
MAX_CODE_CHARS = 64
SUMS = (
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "cost_micro_usd",
)


class EndedRequest(Protocol):
    @property
    def settle(self) -> Settle: ...
    @property
    def kind(self) -> Outcome: ...


def changes_of(ended: Iterable[EndedRequest]) -> dict[SeriesKey, Figures]:
    """The sum of what they add, by minute and subject."""
    counted: dict[tuple[int, Kind, str], tuple[list[str], list[int]]] = {}
    for one in ended:
        names, sums = _counts_of(one), _sums_of(one.settle)
        for subject in _subjects_of(one.settle):
            known = counted.get(subject)
            if known is None:
                counted[subject] = ([*names], [*sums])
            else:
                known[0].extend(names)
                known[1][:] = map(operator.add, known[1], sums)
    return {
        SeriesKey(MINUTE_S, at_unix_s, kind, name): {
            **Counter(names),
            **{column: number for column, number in zip(SUMS, sums, strict=True) if number},
        }
        for (at_unix_s, kind, name), (names, sums) in counted.items()
    }


def _counts_of(ended: EndedRequest) -> list[str]:
    """The figures that count it. Times are of answered requests alone: a refusal's would be those
    of no model."""
    settle = ended.settle
    names = ["requests", ended.kind.value]
    if settle.outcome != FINISHED:
        names.append(ERROR + settle.outcome[:MAX_CODE_CHARS].replace("\0", ""))
        return names
    if settle.time_to_first_token_ms is not None:
        names.append(in_bucket("first_token_ms", settle.time_to_first_token_ms))
    names.append(in_bucket("total_ms", settle.duration_ms))
    return names


def _sums_of(settle: Settle) -> tuple[int, ...]:
    """The sums in the order of ``SUMS``."""
    return (
        max(0, settle.prompt_tokens),
        max(0, settle.cached_tokens),
        max(0, settle.completion_tokens),
        max(0, settle.reasoning_tokens),
        max(0, settle.cost_micro_usd),
    )


def _subjects_of(settle: Settle) -> list[tuple[int, Kind, str]]:
    """Returns the request's minute with each of its subjects. An unknown model, neuron or account
    has no series."""
    at = floor_s(settle.ended_unix_s, MINUTE_S)
    subjects = [(at, Kind.FLEET, FLEET_NAME)]
    if settle.model and settle.model != UNKNOWN_MODEL:
        subjects.append((at, Kind.MODEL, settle.model))
    if settle.neuron:
        subjects.append((at, Kind.NEURON, settle.neuron))
    if settle.account:
        subjects.append((at, Kind.ACCOUNT, settle.account))
    return subjects
