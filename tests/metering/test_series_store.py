"""Requests are counted once, by every gateway that records one, and stay counted while their rows
become coarser; figures add up in any order, percentiles with them; and steps of time."""

from __future__ import annotations

import math
import random
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections
from hypothesis import given
from hypothesis import strategies as st

from metering import request_records, series_store
from metering.errors import MeteringValueError
from metering.models import SeriesRow
from metering.series import (
    DAY_S,
    ERROR,
    HOUR_S,
    KEPT_S,
    MAX_CODES,
    MAX_ERROR,
    MAX_POINTS,
    MINUTE_S,
    QUARTER_S,
    RANGES,
    TIERS,
    USUAL_POINTS,
    Figures,
    Kind,
    SeriesKey,
    add,
    boundary_s,
    bucket_of,
    errors_of,
    finest_step_s,
    floor_s,
    in_bucket,
    kind_of,
    merged,
    percentile,
    percentile_of,
    range_of,
)
from metering.series_store import figures_add, series_roll_up
from tests.cases import each_case
from tests.metering.request_records.records import ended

NOW_UNIX_S = 1_780_000_123


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_store, "PAUSE_S", 0.0)
    monkeypatch.setattr(series_store, "ROWS_PER_MOVE", 40)


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
        request_records.insert([answered, failed, refused], using=using)
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
    assert (row.step_s, row.at.timestamp(), row.requests) == (MINUTE_S, floor_s(at, MINUTE_S), 3)


def test_gateways_add_to_the_same_rows(using: str) -> None:
    """Some rows are there and others are not yet: no two writers wait for each other."""

    def gateway(number: int) -> None:
        try:
            for step in range(20):
                at_unix_s, model = NOW_UNIX_S - 60 * (step % 10), f"model-{number % 2}"
                request_records.insert([ended(model=model, ended_unix_s=at_unix_s)], using=using)
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
    request_records.insert(made, using=using)
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
        request_records.insert([ended(ended_unix_s=NOW_UNIX_S - days * DAY_S)], using=using)
        series_roll_up(now_unix_s=NOW_UNIX_S, using=using)
    found = SeriesRow.objects.using(using).filter(kind=Kind.FLEET).order_by("at")
    assert [(row.step_s, row.requests) for row in found] == [(HOUR_S, 1), (HOUR_S, 2)]


def test_a_call_moves_a_bounded_number(using: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for hours in range(8, 12):
        request_records.insert([ended(ended_unix_s=NOW_UNIX_S - hours * HOUR_S)], using=using)
    monkeypatch.setattr(series_store, "ROWS_PER_MOVE", 7)
    monkeypatch.setattr(series_store, "MAX_BATCHES", 1)
    pauses: list[float] = []
    assert series_roll_up(now_unix_s=NOW_UNIX_S, using=using, pause=pauses.append) == 7
    assert len(pauses) == 1
    monkeypatch.setattr(series_store, "MAX_BATCHES", 100)
    series_roll_up(now_unix_s=NOW_UNIX_S, using=using)
    assert (steps(using), figures_of(using)["requests"]) == ({QUARTER_S}, 4)


def test_names_and_numbers_that_no_column_holds(using: str) -> None:
    at = floor_s(time.time(), MINUTE_S)
    changes: dict[SeriesKey, Any] = {
        SeriesKey(MINUTE_S, at, Kind.MODEL, "x\0y\ud800" + "z" * 200): {"requests": 2**63},
        SeriesKey(MINUTE_S, at, Kind.MODEL, f"{uuid.uuid4()}"): {"requests": 1},
    }
    for _ in range(2):
        figures_add(changes, using=using)
    big, small = SeriesRow.objects.using(using).order_by("-requests")
    assert (big.requests, small.requests) == (2**63 - 1, 2)
    assert big.name.startswith("xy?z") and len(big.name) == 127


VALUES = st.lists(st.integers(1, 10**9), min_size=1, max_size=15)


@given(VALUES, VALUES, st.integers(1, 100))
def test_a_percentile_is_off_by_little_and_histograms_add_up(
    left: list[int], right: list[int], percent: int
) -> None:
    values = left + right
    exact = sorted(values)[max(1, math.ceil(percent / 100 * len(values))) - 1]
    found = percentile(Counter(map(bucket_of, values)), percent / 100)
    assert found is not None and abs(found - exact) <= exact * MAX_ERROR * 1.001

    def counted(values: list[int]) -> Figures:
        return merged({in_bucket("ms", value): 1} for value in values)

    both = merged([counted(left), counted(right)])
    assert both == counted(values)
    assert percentile_of(both, "ms", percent / 100) == found


def test_extremes_have_a_bucket() -> None:
    assert percentile({}, 0.5) is None
    assert bucket_of(-5) == bucket_of(0.5) == 0
    assert percentile({0: 3}, 0.5) == 0.0
    assert bucket_of(10**30) == bucket_of(2**63 - 1)
    assert percentile({bucket_of(2): 1}, 1.0) == pytest.approx(2, rel=MAX_ERROR)


def test_codes_are_bounded_and_none_is_lost() -> None:
    row: Figures = {}
    for number in range(MAX_CODES + 10):
        add(row, {f"{ERROR}code_{number}": 2})
    found = errors_of(row)
    assert len(found) == MAX_CODES + 1
    assert (found["other"], sum(found.values())) == (20, 2 * (MAX_CODES + 10))
    assert next(iter(found)) == "other", "the most first"


@given(st.integers(0, 2 * KEPT_S), st.integers(0, KEPT_S))
def test_what_is_rolled_up_is_of_a_whole_coarse_step(age_s: int, shift_s: int) -> None:
    """A row that stays fine has its whole coarse step fine; what a range reads is fine enough."""
    now_unix_s = NOW_UNIX_S + shift_s
    for place, (_, kept_s) in enumerate(TIERS[:-1]):
        assert boundary_s(now_unix_s, place) % TIERS[place + 1][0] == 0
        assert boundary_s(now_unix_s, place) <= now_unix_s - kept_s
    step_s = finest_step_s(now_unix_s - age_s, now_unix_s)
    coarser = [place for place, tier in enumerate(TIERS) if tier[0] > step_s]
    if coarser:
        assert now_unix_s - age_s >= boundary_s(now_unix_s, coarser[0] - 1)


@given(
    st.sampled_from([*RANGES, "5m", "7m", "100m", "6h", "71h", "4d", "29d"]), st.integers(0, 10**6)
)
def test_a_range_has_few_points_and_ends_now(word: str, shift_s: int) -> None:
    now_unix_s = NOW_UNIX_S + shift_s
    found = range_of(word, "", now_unix_s=now_unix_s)
    points = range(found.since_unix_s, found.until_unix_s + 1, found.step_s)
    assert 2 <= len(points) <= USUAL_POINTS + 1
    assert points[0] == found.since_unix_s
    assert points[-1] == floor_s(now_unix_s, found.step_s)
    assert found.step_s % finest_step_s(found.since_unix_s, now_unix_s) == 0


@each_case(
    ("word", "step", "parameter"),
    [
        ("4m", "", "range"),
        ("31d", "", "range"),
        ("week", "", "range"),
        ("24h", "60", "step"),  # no minutes are kept so long
        ("30m", "90", "step"),
        ("30m", "3600", "step"),
        ("30m", "0", "step"),
        ("30m", "-60", "step"),
        ("30m", "²", "step"),
    ],
)
def test_what_no_series_has_is_refused_by_name(word: str, step: str, parameter: str) -> None:
    with pytest.raises(MeteringValueError) as refused:
        range_of(word, step, now_unix_s=NOW_UNIX_S)
    assert refused.value.field == parameter
    found = range_of("3h", "300", now_unix_s=NOW_UNIX_S)
    assert (found.step_s, found.step_words, found.since_unix_s % 300) == (300, "5 minutes", 0)
    assert range_of("30d", "3600", now_unix_s=NOW_UNIX_S).step_words == "1 hour"
    assert KEPT_S // TIERS[-1][0] <= MAX_POINTS, "every row can be read by itself"
    assert kind_of("model") is Kind.MODEL
    with pytest.raises(MeteringValueError, match="'models' is none of fleet, model"):
        kind_of("models")
