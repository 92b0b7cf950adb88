"""``/api/series``, the command over it, and the charts of pages: who sees which, in which steps."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from django.core.management.base import CommandError
from django.test import Client

from metering import request_records
from metering.audit import COMMAND
from metering.models import Account
from metering.series import HOUR_S, MAX_ERROR, MINUTE_S, SUM, Kind, SeriesKey, floor_s
from metering.series_store import figures_add, series_roll_up
from metering.services import CreatedKey, key_create
from tests.metering.callers import ok, person, refused
from tests.metering.commands.command_output import output, printed_json
from tests.metering.request_records.records import ended

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("listens_elsewhere")]

GIB = 1024**3


def record(*ages_s: float, **changes: Any) -> None:
    now_unix_s = time.time()
    request_records.insert([ended(ended_unix_s=now_unix_s - age_s, **changes) for age_s in ages_s])


def sampled(kind: Kind, name: str, **figures: int) -> None:
    at = floor_s(time.time(), MINUTE_S)
    figures_add({SeriesKey(MINUTE_S, at, kind, name): figures})


@pytest.fixture
def operator() -> Client:
    return person("olga", is_staff=True)


def total(shown: Any, name: str) -> int:
    return sum(point[name] for point in shown["data"])


def test_a_models_points(operator: Client) -> None:
    record(0, 0, 600, account="research", duration_ms=1000)
    record(0, model="other", account="research")
    record(0, status=503, outcome="neuron_lost", account="research")
    sampled(Kind.MODEL, "tiny", **{"samples": 2, f"queue_depth{SUM}": 6, "queue_depth@8": 1})
    shown = ok(operator, "series?kind=model&name=tiny&range=30m")
    assert (shown["kind"], shown["name"], shown["step_s"]) == ("model", "tiny", 60)
    assert len(shown["data"]) == 30
    assert shown["data"][0]["at"] == shown["since"]
    assert (total(shown, "requests"), total(shown, "failed")) == (4, 1)
    newest = [point for point in shown["data"] if point["answered"]][-1]
    for name, expected_ms in (("total", 1000), ("first_token", 120)):
        for percentile in ("p50", "p95"):
            found = newest[f"{name}_{percentile}_ms"]
            assert found == pytest.approx(expected_ms, rel=MAX_ERROR), (name, percentile)
    assert newest["errors"] in ({"neuron_lost": 1}, {})
    assert newest["prompt_tokens_per_s"] == round(newest["prompt_tokens"] / 60, 2)
    depths = [one["queue_depth"] for one in shown["data"]]
    assert [depth for depth in depths if depth is not None] == [3.0]
    empty = next(point for point in shown["data"] if not point["requests"])
    assert (empty["total_p50_ms"], empty["errors"]) == (None, {})


def test_a_devices_points_and_their_charts(operator: Client) -> None:
    figures = {f"memory_used_bytes{SUM}": 6 * GIB, f"memory_bytes{SUM}": 16 * GIB, "samples": 2}
    for device, percent in (("cpu", 10), ("cuda:0", 71)):
        busy = {"busy_samples": 1, f"busy_percent{SUM}": percent}
        sampled(Kind.DEVICE, f"beast/{device}", **figures | busy)
    sampled(Kind.DEVICE, "beastly/cpu", samples=1)
    device = ok(operator, "series?kind=device&name=beast/cuda:0&range=30m")["data"]
    (point,) = [one for one in device if one["memory_bytes"] is not None]
    del point["at"]
    used = {"memory_used_bytes": 3 * GIB, "memory_bytes": 8 * GIB}
    assert point == {"busy_percent": 71.0} | used
    shown = charts(operator, "kind=neuron&name=beast&range=30m")
    for chart_id, unit in (("series-busy", "%"), ("series-memory", "bytes")):
        numbers = shown[chart_id]
        assert [line["label"] for line in numbers["lines"]] == ["cpu", "cuda:0"]
        assert numbers["unit"] == unit and not numbers["steps"]


def test_a_long_range_has_coarse_steps(operator: Client) -> None:
    record(*range(0, 20 * HOUR_S, HOUR_S))
    for _ in range(2):
        for word, points, step_s in (("24h", 96, 900), ("7d", 168, HOUR_S), ("30d", 120, 21_600)):
            shown = ok(operator, f"series?range={word}")
            assert (len(shown["data"]), shown["step_s"]) == (points, step_s), word
            assert total(shown, "requests") == 20
        series_roll_up(now_unix_s=time.time() + 2 * HOUR_S)
    lines = output("series", "list", "--kind", "model", "--name", "tiny", "--range", "24h")
    assert lines.splitlines()[0].split()[:3] == ["at", "requests", "failed"]
    assert len(lines.splitlines()) == 97
    assert printed_json("series", "list", "--range", "24h")["step_s"] == 900
    with pytest.raises(CommandError, match="'1y' is not a time"):
        output("series", "list", "--range", "1y")


def test_who_sees_what(
    client: Client, operator: Client, account: Account, made: CreatedKey
) -> None:
    record(0, account="research")
    mia = person("mia", account, role="viewer")
    theirs = "series?kind=account&name=research"
    for asker in (mia, operator):
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
    assert "is none of" in operator.get("/series/panel?kind=x").content.decode()
    assert "is not a time" in operator.get("/series/panel?kind=fleet&range=x").content.decode()


def test_bad_parameters_are_refused_by_name(operator: Client) -> None:
    for query in ("kind=nothing", "kind=model", "name=tiny", "range=1y", "range=24h&step=60"):
        assert refused(operator, f"series?{query}") == (400, "invalid_value")
    assert refused(operator, "series?since=2h") == (400, "unknown_parameter")


def charts(client: Client, query: str) -> dict[str, Any]:
    """The numbers of each chart of a panel, by its id."""
    text = client.get(f"/series/panel?{query}").content.decode()
    found = re.findall(r'<script id="([^"]+)" type="application/json">(.*?)</script>', text)
    assert text.count("<canvas") == len(found)
    return {chart_id: json.loads(numbers) for chart_id, numbers in found}


def test_a_models_charts(operator: Client) -> None:
    record(0, 0, status=503, outcome="neuron_lost")
    record(0)
    shown = charts(operator, "kind=model&name=tiny")
    assert list(shown) == [
        *("series-requests", "series-errors", "series-first-token", "series-total"),
        "series-tokens",
    ]
    requests = shown["series-requests"]
    assert requests["steps"] and [line["label"] for line in requests["lines"]] == [
        *("answered", "cancelled", "refused", "failed")
    ]
    assert [sum(line["data"]) for line in requests["lines"]] == [1, 0, 0, 2]
    (errors,) = shown["series-errors"]["lines"]
    assert (errors["label"], sum(errors["data"])) == ("neuron_lost", 2)
    for numbers in shown.values():
        assert {len(line["data"]) for line in numbers["lines"]} == {len(numbers["labels"])}
        assert len({line["color"] for line in numbers["lines"]}) == len(numbers["lines"])
    for number in range(9):
        record(*[0] * (number + 1), status=400, outcome=f"code_{number}", model="many")
    lines = charts(operator, "kind=model&name=many")["series-errors"]["lines"]
    labels = [line["label"] for line in lines]
    assert labels == [*(f"code_{number}" for number in range(3, 9)), "others"]
    assert sum(lines[-1]["data"]) == 1 + 2 + 3
