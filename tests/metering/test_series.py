"""Requests are counted once, by every gateway that records one, and stay counted while their rows
become coarser; and ``/api/series``, the command and the charts over them: who sees which."""

from __future__ import annotations

import json
import math
import random
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.core.management.base import CommandError
from django.db import connections
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from metering import series_store, sql
from metering.audit import COMMAND
from metering.errors import MeteringValueError
from metering.models import Account, SeriesRow
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
    SUM,
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
from metering.services import CreatedKey, key_create
from tests.metering.callers import ok, person, refused
from tests.metering.commands.command_output import output, printed_json
from tests.metering.request_records.records import ended, insert

NOW_UNIX_S = 1_780_000_123
GIB = 1024**3


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "PAUSE_S", 0.0)
    monkeypatch.setattr(series_store, "ROWS_PER_MOVE", 40)


def figures_of(using: str, kind: Kind = Kind.FLEET, name: str = "") -> Figures:
    found = SeriesRow.objects.using(using).filter(kind=kind, name=name)
    return merged(row.figures for row in found)


def steps(using: str) -> set[int]:
    return set(SeriesRow.objects.using(using).values_list("step_s", flat=True))


def test_a_request_counts_for_each_of_its_subjects_and_adds_to_the_same_rows(using: str) -> None:
    at = NOW_UNIX_S
    lost = {"status": 503, "outcome": "neuron_lost", "model": "other", "completion_tokens": 0}
    unknown = {"status": 401, "outcome": "invalid_api_key", "model": "-", "neuron": ""}
    made = [ended(ended_unix_s=at, **changes) for changes in ({}, lost, unknown | {"account": ""})]
    for _ in range(2):  # what is recorded twice counts once
        insert(*made, using=using)
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

    def gateway(number: int) -> None:
        """Some rows are there and others are not yet: no two writers wait for each other."""
        try:
            for step in range(20):
                at_unix_s, model = NOW_UNIX_S - 60 * (step % 10), f"model-{number % 2}"
                insert(ended(model=model, ended_unix_s=at_unix_s), using=using)
        finally:
            connections[using].close()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(gateway, range(8)))
    assert figures_of(using)["requests"] == 163
    assert figures_of(using, Kind.MODEL, "model-0")["requests"] == 80


def test_rows_become_coarser_and_nothing_is_lost(
    using: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(7)
    ages_s = [chance.randrange(KEPT_S - DAY_S) for _ in range(20)] + [*range(0, 9 * HOUR_S, 3_601)]
    for age_s in ages_s:
        facts = {"model": chance.choice(["tiny", "large"]), "duration_ms": chance.randrange(10**5)}
        insert(ended(ended_unix_s=NOW_UNIX_S - age_s, **facts), using=using)
    subjects = ((Kind.FLEET, ""), (Kind.MODEL, "tiny"), (Kind.MODEL, "large"))
    before = [figures_of(using, *subject) for subject in subjects]
    assert steps(using) == {MINUTE_S}
    with monkeypatch.context() as patch:  # a call moves a bounded number
        patch.setattr(series_store, "ROWS_PER_MOVE", 7)
        patch.setattr(sql, "MAX_BATCHES", 1)
        assert series_roll_up(now_unix_s=NOW_UNIX_S, using=using) == 14
    assert series_roll_up(now_unix_s=NOW_UNIX_S, using=using) > 0
    assert steps(using) == {MINUTE_S, QUARTER_S, HOUR_S}
    assert [figures_of(using, *subject) for subject in subjects] == before
    assert series_roll_up(now_unix_s=NOW_UNIX_S, using=using) == 0, "it is done"
    for row in SeriesRow.objects.using(using).all():
        age_s = NOW_UNIX_S - row.at.timestamp()
        kept_s = {MINUTE_S: 6 * HOUR_S, QUARTER_S: 3 * DAY_S, HOUR_S: KEPT_S}[row.step_s]
        assert age_s <= kept_s + HOUR_S and row.requests == row.figures["requests"]
    SeriesRow.objects.using(using).all().delete()
    for days in (4, 4, 29, 32):  # a late request still counts and thirty days are kept
        insert(ended(ended_unix_s=NOW_UNIX_S - days * DAY_S), using=using)
        series_roll_up(now_unix_s=NOW_UNIX_S, using=using)
    found = SeriesRow.objects.using(using).filter(kind=Kind.FLEET).order_by("at")
    assert [(row.step_s, row.requests) for row in found] == [(HOUR_S, 1), (HOUR_S, 2)]
    SeriesRow.objects.using(using).all().delete()
    names = {"x\0y\ud800" + "z" * 200: 2**63, "another": 1}  # that no column holds
    changes = {
        SeriesKey(MINUTE_S, 60, Kind.MODEL, name): {"requests": n} for name, n in names.items()
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
    exact = sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]
    found = percentile(Counter(map(bucket_of, values)), percent / 100)
    assert found is not None and abs(found - exact) <= exact * MAX_ERROR * 1.001

    def counted(values: list[int]) -> Figures:
        return merged({in_bucket("ms", value): 1} for value in values)

    both = merged([counted(left), counted(right)])
    assert both == counted(values)
    assert percentile_of(both, "ms", percent / 100) == found


def test_extremes_have_a_bucket_and_codes_are_bounded() -> None:
    assert percentile({}, 0.5) is None and percentile({0: 3}, 0.5) == 0.0
    assert bucket_of(-5) == bucket_of(0.5) == 0
    assert bucket_of(10**30) == bucket_of(2**63 - 1)
    assert percentile({bucket_of(2): 1}, 1.0) == pytest.approx(2, rel=MAX_ERROR)
    row: Figures = {}
    for number in range(MAX_CODES + 10):
        add(row, {f"{ERROR}code_{number}": 2})
    found = errors_of(row)
    assert (len(found), sum(found.values())) == (MAX_CODES + 1, 2 * (MAX_CODES + 10))
    assert next(iter(found.items())) == ("other", 20), "the most first, and none is lost"


@given(
    st.sampled_from([*RANGES, "5m", "7m", "100m", "6h", "71h", "4d", "29d"]),
    st.integers(0, 2 * KEPT_S),
    st.integers(0, KEPT_S),
)
def test_a_range_has_few_points_ends_now_and_reads_what_is_fine_enough(
    word: str, age_s: int, shift_s: int
) -> None:
    """A row that stays fine has its whole coarse step fine."""
    now_unix_s = NOW_UNIX_S + shift_s
    for place, (_, kept_s) in enumerate(TIERS[:-1]):
        assert boundary_s(now_unix_s, place) % TIERS[place + 1][0] == 0
        assert boundary_s(now_unix_s, place) <= now_unix_s - kept_s
    step_s = finest_step_s(now_unix_s - age_s, now_unix_s)
    coarser = [place for place, tier in enumerate(TIERS) if tier[0] > step_s]
    assert not coarser or now_unix_s - age_s >= boundary_s(now_unix_s, coarser[0] - 1)
    found = range_of(word, "", now_unix_s=now_unix_s)
    points = range(found.since_unix_s, found.until_unix_s + 1, found.step_s)
    assert 2 <= len(points) <= USUAL_POINTS + 1
    assert (points[0], points[-1]) == (found.since_unix_s, floor_s(now_unix_s, found.step_s))
    assert found.step_s % finest_step_s(found.since_unix_s, now_unix_s) == 0


def test_what_no_series_has_is_refused_by_name() -> None:
    for word, step, parameter in (
        *((word, "", "range") for word in ("4m", "31d", "week")),
        ("24h", "60", "step"),  # no minutes are kept so long
        *(("30m", step, "step") for step in ("90", "3600", "0", "-60", "²")),
    ):
        with pytest.raises(MeteringValueError) as caught:
            range_of(word, step, now_unix_s=NOW_UNIX_S)
        assert caught.value.field == parameter, (word, step)
    found = range_of("3h", "300", now_unix_s=NOW_UNIX_S)
    assert (found.step_s, found.step_words, found.since_unix_s % 300) == (300, "5 minutes", 0)
    assert range_of("30d", "3600", now_unix_s=NOW_UNIX_S).step_words == "1 hour"
    assert KEPT_S // TIERS[-1][0] <= MAX_POINTS, "every row can be read by itself"
    assert kind_of("model") is Kind.MODEL
    with pytest.raises(MeteringValueError, match="'models' is none of fleet, model"):
        kind_of("models")


def record(*ages_s: float, **changes: Any) -> None:
    now_unix_s = time.time()
    insert(*(ended(ended_unix_s=now_unix_s - age_s, **changes) for age_s in ages_s))


def sampled(kind: Kind, name: str, **figures: int) -> None:
    at = floor_s(time.time(), MINUTE_S)
    figures_add({SeriesKey(MINUTE_S, at, kind, name): figures})


@pytest.fixture
def olga(db: None, listens_elsewhere: None) -> Client:
    return person("olga", is_staff=True)


def total(shown: Any, name: str) -> int:
    return sum(point[name] for point in shown["data"])


def charts(client: Client, query: str) -> dict[str, Any]:
    """The numbers of each chart of a panel, by its id."""
    text = client.get(f"/series/panel?{query}").content.decode()
    found = re.findall(r'<script id="([^"]+)" type="application/json">(.*?)</script>', text)
    assert text.count("<canvas") == len(found)
    return {chart_id: json.loads(numbers) for chart_id, numbers in found}


def test_points_of_a_model_and_of_devices(olga: Client) -> None:
    record(0, 0, 600, account="research", duration_ms=1000)
    record(0, model="other", account="research")
    record(0, status=503, outcome="neuron_lost", account="research")
    sampled(Kind.MODEL, "tiny", **{"samples": 2, f"queue_depth{SUM}": 6, "queue_depth@8": 1})
    shown = ok(olga, "series?kind=model&name=tiny&range=30m")
    assert (shown["kind"], shown["name"], shown["step_s"]) == ("model", "tiny", 60)
    assert (len(shown["data"]), shown["data"][0]["at"]) == (30, shown["since"])
    assert (total(shown, "requests"), total(shown, "failed")) == (4, 1)
    newest = [point for point in shown["data"] if point["answered"]][-1]
    for name, expected_ms in (("total", 1000), ("first_token", 120)):
        found = [newest[f"{name}_{percentile}_ms"] for percentile in ("p50", "p95")]
        assert found == pytest.approx([expected_ms] * 2, rel=MAX_ERROR), name
    assert newest["errors"] in ({"neuron_lost": 1}, {})
    assert newest["prompt_tokens_per_s"] == round(newest["prompt_tokens"] / 60, 2)
    depths = [one["queue_depth"] for one in shown["data"]]
    assert [depth for depth in depths if depth is not None] == [3.0]
    empty = next(point for point in shown["data"] if not point["requests"])
    assert (empty["total_p50_ms"], empty["errors"]) == (None, {})
    figures = {f"memory_used_bytes{SUM}": 6 * GIB, f"memory_bytes{SUM}": 16 * GIB, "samples": 2}
    for device, percent in (("cpu", 10), ("cuda:0", 71)):
        busy = {"busy_samples": 1, f"busy_percent{SUM}": percent}
        sampled(Kind.DEVICE, f"beast/{device}", **figures | busy)
    sampled(Kind.DEVICE, "beastly/cpu", samples=1)
    data = ok(olga, "series?kind=device&name=beast/cuda:0&range=30m")["data"]
    (point,) = [one for one in data if one["memory_bytes"] is not None]
    used = {"memory_used_bytes": 3 * GIB, "memory_bytes": 8 * GIB}
    assert point == {"at": point["at"], "busy_percent": 71.0} | used
    drawn = charts(olga, "kind=neuron&name=beast&range=30m")
    for chart_id, unit in (("series-busy", "%"), ("series-memory", "bytes")):
        numbers = drawn[chart_id]
        assert [line["label"] for line in numbers["lines"]] == ["cpu", "cuda:0"]
        assert numbers["unit"] == unit and not numbers["steps"]


def test_a_long_range_has_coarse_steps(olga: Client) -> None:
    record(*range(0, 20 * HOUR_S, HOUR_S))
    for _ in range(2):
        for word, points, step_s in (("24h", 96, 900), ("7d", 168, HOUR_S), ("30d", 120, 21_600)):
            shown = ok(olga, f"series?range={word}")
            assert (len(shown["data"]), shown["step_s"]) == (points, step_s), word
            assert total(shown, "requests") == 20
        series_roll_up(now_unix_s=time.time() + 2 * HOUR_S)
    lines = output("series", "list", "--kind", "model", "--name", "tiny", "--range", "24h")
    assert lines.splitlines()[0].split()[:3] == ["at", "requests", "failed"]
    assert len(lines.splitlines()) == 97
    assert printed_json("series", "list", "--range", "24h")["step_s"] == 900
    with pytest.raises(CommandError, match="'1y' is not a time"):
        output("series", "list", "--range", "1y")
    for query in ("kind=nothing", "kind=model", "name=tiny", "range=1y", "range=24h&step=60"):
        assert refused(olga, f"series?{query}") == (400, "invalid_value")
    assert refused(olga, "series?since=2h") == (400, "unknown_parameter")


def test_who_sees_what(client: Client, olga: Client, account: Account, made: CreatedKey) -> None:
    record(0, account="research")
    mia = person("mia", account, role="viewer")
    theirs = "series?kind=account&name=research"
    for asker in (mia, olga):
        assert total(ok(asker, theirs), "requests") == 1
    not_theirs = (403, "account_not_allowed")
    assert refused(mia, "series?kind=account&name=other") == not_theirs
    assert refused(client, theirs, made.key) == not_theirs, "it sees its own requests alone"
    assert refused(mia, "series?kind=account") == not_theirs
    for path in ("series", "series?kind=model&name=tiny", "series?kind=x"):
        assert refused(mia, path) == (403, "insufficient_scope")
    for scope, path in (("fleet:read", "series"), ("accounts:read", theirs)):
        key = key_create(actor=COMMAND, account=account, scopes=[scope]).key
        assert total(ok(client, path, key), "requests") == 1
    assert "series-requests" in charts(mia, "kind=account&name=research")
    for query in ("kind=account&name=other", "kind=fleet", "kind=model&name=tiny"):
        assert mia.get(f"/series/panel?{query}").status_code == 403
    assert "is none of" in olga.get("/series/panel?kind=x").content.decode()
    assert "is not a time" in olga.get("/series/panel?kind=fleet&range=x").content.decode()


def test_a_models_charts(olga: Client) -> None:
    record(0, 0, status=503, outcome="neuron_lost")
    record(0)
    shown = charts(olga, "kind=model&name=tiny")
    names = ("requests", "errors", "first-token", "total", "tokens")
    assert list(shown) == [f"series-{name}" for name in names]
    lines = {line["label"]: sum(line["data"]) for line in shown["series-requests"]["lines"]}
    assert list(lines.items()) == [("answered", 1), ("cancelled", 0), ("refused", 0), ("failed", 2)]
    assert shown["series-requests"]["steps"]
    (errors,) = shown["series-errors"]["lines"]
    assert (errors["label"], sum(errors["data"])) == ("neuron_lost", 2)
    for numbers in shown.values():
        assert {len(line["data"]) for line in numbers["lines"]} == {len(numbers["labels"])}
        assert len({line["color"] for line in numbers["lines"]}) == len(numbers["lines"])
    for number in range(9):
        record(*[0] * (number + 1), status=400, outcome=f"code_{number}", model="many")
    lines = charts(olga, "kind=model&name=many")["series-errors"]["lines"]
    labels = [line["label"] for line in lines]
    assert labels == [*(f"code_{number}" for number in range(3, 9)), "others"]
    assert sum(lines[-1]["data"]) == 1 + 2 + 3
