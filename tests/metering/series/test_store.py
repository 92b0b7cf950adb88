"""Requests are counted once, by every gateway that records one, and stay counted while their rows
become coarser; old ones go."""

from __future__ import annotations

import random
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections

from metering.models import SeriesRow
from metering.request_records import rows
from metering.series import store
from metering.series.figures import MAX_ERROR, Figures, merged, percentile_of
from metering.series.steps import (
    DAY_S,
    HOUR_S,
    KEPT_S,
    MINUTE_S,
    QUARTER_S,
    Kind,
    SeriesKey,
    floor_s,
)
from metering.series.store import series_roll_up
from tests.metering.request_records.records import ended

NOW_UNIX_S = 1_780_000_123.0


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PAUSE_S", 0.0)
    monkeypatch.setattr(store, "ROWS_PER_MOVE", 40)


def figures_of(using: str, kind: Kind = Kind.FLEET, name: str = "") -> Figures:
    found = SeriesRow.objects.using(using).filter(kind=kind, name=name)
    return merged(row.figures for row in found)


def steps(using: str) -> set[int]:
    return set(SeriesRow.objects.using(using).values_list("step_s", flat=True))


def test_a_request_counts_for_each_of_its_subjects(using: str) -> None:
    at = NOW_UNIX_S
    answered = ended(ended_unix_s=at)
    failed = ended(
        status=503, outcome="neuron_lost", model="other", ended_unix_s=at, completion_tokens=0
    )
    refused = ended(
        status=401, outcome="invalid_api_key", model="-", neuron="", account="", ended_unix_s=at
    )
    for _ in range(2):  # what is recorded twice counts once
        rows.insert([answered, failed, refused], using=using)
    fleet = figures_of(using)
    assert (fleet["requests"], fleet["answered"], fleet["failed"], fleet["refused"]) == (3, 1, 1, 1)
    assert (fleet["error:neuron_lost"], fleet["error:invalid_api_key"]) == (1, 1)
    assert percentile_of(fleet, "total_ms", 0.95) == pytest.approx(1500, rel=MAX_ERROR)
    assert percentile_of(fleet, "first_token_ms", 0.5) == pytest.approx(120, rel=MAX_ERROR)
    model = figures_of(using, Kind.MODEL, "tiny")
    assert (model["requests"], model["prompt_tokens"], model["completion_tokens"]) == (1, 40, 30)
    assert figures_of(using, Kind.NEURON, "beast")["requests"] == 2
    assert figures_of(using, Kind.ACCOUNT, "lab")["requests"] == 2
    assert SeriesRow.objects.using(using).count() == 5, "the unknown have none"
    (row,) = SeriesRow.objects.using(using).filter(kind=Kind.FLEET)
    assert (row.step_s, row.at.timestamp(), row.requests) == (
        MINUTE_S,
        floor_s(at, MINUTE_S),
        3,
    )


def test_gateways_add_to_the_same_rows(using: str) -> None:
    """Some rows are there and others are not yet: no two writers wait for each other."""

    def gateway(number: int) -> None:
        try:
            for step in range(20):
                at_unix_s, model = NOW_UNIX_S - 60 * (step % 10), f"model-{number % 2}"
                rows.insert([ended(model=model, ended_unix_s=at_unix_s)], using=using)
        finally:
            connections[using].close()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(gateway, range(8)))
    assert figures_of(using)["requests"] == 160
    assert figures_of(using, Kind.MODEL, "model-0")["requests"] == 80


def test_rows_become_coarser_and_nothing_is_lost(using: str) -> None:
    chance = random.Random(7)
    ages_s = [chance.randrange(KEPT_S - DAY_S) for _ in range(20)] + list(
        range(0, 9 * HOUR_S, 3_601)
    )
    made = [
        ended(
            ended_unix_s=NOW_UNIX_S - age_s,
            model=chance.choice(["tiny", "large"]),
            duration_ms=chance.randrange(1, 10**5),
        )
        for age_s in ages_s
    ]
    rows.insert(made, using=using)
    subjects = ((Kind.FLEET, ""), (Kind.MODEL, "tiny"), (Kind.MODEL, "large"))
    before = [figures_of(using, *subject) for subject in subjects]
    assert steps(using) == {MINUTE_S}
    assert series_roll_up(now_unix_s=NOW_UNIX_S, using=using) > 0
    assert steps(using) == {MINUTE_S, QUARTER_S, HOUR_S}
    assert [figures_of(using, *subject) for subject in subjects] == before
    assert series_roll_up(now_unix_s=NOW_UNIX_S, using=using) == 0, "it is done"
    for row in SeriesRow.objects.using(using).all():
        age_s = NOW_UNIX_S - row.at.timestamp()
        kept_s = {MINUTE_S: 6 * HOUR_S, QUARTER_S: 3 * DAY_S, HOUR_S: KEPT_S}[row.step_s]
        assert age_s <= kept_s + HOUR_S and row.requests == row.figures["requests"]


def test_a_late_request_still_counts_and_thirty_days_are_kept(using: str) -> None:
    for days in (4, 4, 29, 32):
        rows.insert([ended(ended_unix_s=NOW_UNIX_S - days * DAY_S)], using=using)
        series_roll_up(now_unix_s=NOW_UNIX_S, using=using)
    found = SeriesRow.objects.using(using).filter(kind=Kind.FLEET).order_by("at")
    assert [(row.step_s, row.requests) for row in found] == [(HOUR_S, 1), (HOUR_S, 2)]


def test_a_call_moves_a_bounded_number(using: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for hours in range(8, 12):
        rows.insert([ended(ended_unix_s=NOW_UNIX_S - hours * HOUR_S)], using=using)
    monkeypatch.setattr(store, "ROWS_PER_MOVE", 7)
    monkeypatch.setattr(store, "MAX_BATCHES", 1)
    pauses: list[float] = []
    assert series_roll_up(now_unix_s=NOW_UNIX_S, using=using, pause=pauses.append) == 7
    assert len(pauses) == 1
    monkeypatch.setattr(store, "MAX_BATCHES", 100)
    series_roll_up(now_unix_s=NOW_UNIX_S, using=using)
    assert (steps(using), figures_of(using)["requests"]) == ({QUARTER_S}, 4)


def test_names_and_numbers_that_no_column_holds(using: str) -> None:
    at = floor_s(time.time(), MINUTE_S)
    changes: dict[SeriesKey, Any] = {
        SeriesKey(MINUTE_S, at, Kind.MODEL, "x\0y\ud800" + "z" * 200): {"requests": 2**63},
        SeriesKey(MINUTE_S, at, Kind.MODEL, f"{uuid.uuid4()}"): {"requests": 1},
    }
    for _ in range(2):
        store.figures_add(changes, using=using)
    big, small = SeriesRow.objects.using(using).order_by("-requests")
    assert (big.requests, small.requests) == (2**63 - 1, 2)
    assert big.name.startswith("xy?z") and len(big.name) == 127
