"""The bench's pages: who may, and that they show what regressed."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from metering.bench.models import BenchRun, BenchTarget, SweepPlan
from metering.models import AuditEntry
from tests.metering.bench import results

PAGES = ("", "runs/", "runs.csv")
COMPARED = "?before=beast@b2&after=beast@b3"


@pytest.fixture
def operator(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("olga"))
    return client


@pytest.fixture
def measured(operator: Client) -> Client:
    results.a_regression()
    return operator


def page(client: Client, path: str, status: int = 200) -> str:
    response = client.get(f"/bench/{path}")
    assert response.status_code == status, response.content
    return response.content.decode()


def rows(text: str) -> list[str]:
    """The table's rows as words."""
    bodies = re.findall(r"<tr([^>]*)>(.*?)</tr>", text, re.DOTALL)
    return [
        " ".join([*head.split(), *re.sub(r"<[^>]+>", " ", body).split()]) for head, body in bodies
    ]


def chart(text: str, name: str) -> Any:
    found = re.search(
        rf'<script id="{name}" type="application/json">(.*?)</script>', text, re.DOTALL
    )
    assert found is not None, f"no chart {name}"
    return json.loads(found[1])


def test_strangers_log_in_members_may_not_and_the_public_may_where_it_is_let(
    measured: Client, settings: Any
) -> None:
    member = Client()
    member.force_login(User.objects.create_user("mia"))
    for path in PAGES:
        response = Client().get(f"/bench/{path}")
        assert response.status_code == 302
        assert response["Location"].startswith("/login/?next=/bench/")
        page(member, path, 403)
        page(measured, path)
        assert measured.post(f"/bench/{path}").status_code == 405
    settings.CONFIG = replace(settings.CONFIG, has_public_bench=True)
    for path in PAGES:
        text = page(Client(), path)
        assert "Log out" not in text
    assert "Log in" in page(Client(), "")


def test_without_results_each_page_reports_what_to_do(operator: Client) -> None:
    assert "manage.py bench once" in page(operator, "")
    assert "There is none." in page(operator, "runs/")


def test_the_overview_marks_what_regressed_beside_previous_and_best(measured: Client) -> None:
    text = page(measured, "")
    assert "1 regressed beyond noise." in text
    (row,) = [row for row in rows(text) if row.startswith("data-regressed")]
    assert row.startswith("data-regressed beast chat:128 decode 70 ± 0.28 tok/s b3 5 regressed")
    assert "0.700 of 100 ± 0.4, b2" in row
    others = [row for row in rows(text) if "TTFT" in row and row.startswith("beast chat")]
    assert "same" in others[0]
    assert any(
        row.startswith("peer chat:128 decode 80") and "first build" in row for row in rows(text)
    )
    assert "beast" in text and "a card" in text


def test_nothing_regressed_is_reported_too(operator: Client) -> None:
    results.cell(build_number=1, decode_tps=100.0)
    results.cell(build_number=2, decode_tps=101.0)
    text = page(operator, "")
    assert "None of 1 regressed beyond noise." in text
    assert "data-regressed" not in text


def test_too_few_samples_are_no_good_news(operator: Client) -> None:
    """Neither on the overview nor where two builds are compared."""
    for build in ("b1", "b2"):
        for speed in (100.0, 40.0):
            results.run(build=build, git_sha=build, decode_tps=speed)
    for path in ("", "?before=beast@b1&after=beast@b2"):
        text = page(operator, path)
        assert "Cannot tell yet: 2 of 5 samples." in text
        assert "regressed beyond noise" not in text


def test_what_can_be_judged_stands_beside_what_cannot(operator: Client) -> None:
    for number, speed in ((1, 100.0), (2, 101.0)):
        results.cell(build_number=number, decode_tps=speed)
        build = f"b{number}"
        results.run(build=build, git_sha=build, scenario_id="chat:512", decode_tps=speed)
    text = page(operator, "")
    assert "None of 1 regressed beyond noise." in text
    assert "1 cannot be judged yet: 1 of 5 samples." in text


def test_first_builds_are_compared_with_nothing(operator: Client) -> None:
    results.cell(decode_tps=100.0)
    assert "Nothing to compare yet: each series has one build." in page(operator, "")


def test_one_concurrency_has_no_knee(operator: Client) -> None:
    results.cell(
        scenario_id="concurrency:4", concurrency=4, decode_tps=240.0, ttft_p95_s=0.3, rejected=0
    )
    text = page(operator, "")
    assert any(row.startswith("4 240") for row in rows(text))
    (line,) = chart(text, "knee")["lines"]
    assert [point["is_marked"] for point in line["points"]] == [False]


def test_trends_draw_builds_and_dash_what_others_gave(measured: Client) -> None:
    text = page(measured, "?model=tiny&scenario=chat:128&target=beast")
    drawn = chart(text, "trend-decode_tps")
    assert drawn["labels"] == ["b1", "b2", "b3"]
    own, baseline = drawn["lines"]
    assert (own["name"], own["is_baseline"]) == ("beast", False)
    assert [round(point) for point in own["points"]] == [90, 100, 70]
    assert own["marked"] == [False, False, True]
    assert (baseline["name"], baseline["is_baseline"]) == ("peer", True)
    assert [round(point) for point in baseline["points"]] == [80, 80, 80]
    assert chart(text, "trend-ttft_s")["lines"][0]["marked"] == [False, False, False]
    assert any(row.startswith("beast b3 2026-10-04 0.2 1,000 70 2.5 5") for row in rows(text))
    again = chart(page(measured, "?model=tiny&scenario=chat:128"), "trend-decode_tps")
    assert again == drawn, "the target of most builds is chosen"
    assert "trend-" not in page(measured, "?model=tiny")


def test_the_knee_is_marked(measured: Client) -> None:
    text = page(measured, "")
    (line,) = chart(text, "knee")["lines"]
    assert [point["is_marked"] for point in line["points"]] == [False, True, False]
    assert any(row.startswith("4 knee 240") for row in rows(text))


def test_builds_are_compared_cell_by_cell(measured: Client) -> None:
    text = page(measured, COMPARED)
    assert "1 regressed" in text
    (row,) = [row for row in rows(text) if row.startswith("data-regressed")]
    assert "tiny chat:128 decode tok/s 100 ± 0.4 70 ± 0.28 0.700" in row and "5/5 regressed" in row
    assert "only beast@b3: tiny load" in text
    assert "None of 2 regressed" in page(measured, "?before=peer@b1&after=beast@b2")


def test_results_are_filtered(measured: Client) -> None:
    text = page(measured, "?scenario=load")
    assert any(row.startswith("beast load load 900") for row in rows(text))
    assert "chat:128 decode" not in " ".join(rows(text)) and 'id="knee"' not in text
    text = page(measured, f"{COMPARED}&model=tiny&scenario=prefill:9")
    assert "chat:128 decode" in " ".join(rows(text)), "there is no such scenario"
    assert page(measured, "?before=beast@b2&model=gone").count("first build") > 3


def test_addresses_of_earlier_pages_lead_to_the_results(measured: Client) -> None:
    for path in ("trends", "concurrency", "compare"):
        response = measured.get(f"/bench/{path}/{COMPARED}")
        assert (response.status_code, response["Location"]) == (
            302,
            "/bench/?before=beast%40b2&after=beast%40b3",
        )


def test_runs_are_filtered_and_shown(measured: Client) -> None:
    assert "56 runs" in page(measured, "runs/")
    text = page(measured, "runs/?ok=false")
    assert "1 run<" in text and "HTTP 500: not today" in text
    assert "There is none." in page(measured, "runs/?model=x")
    assert "neither true nor false" in page(measured, "runs/?ok=maybe", 400)
    run = results.run(artifact="<b>Hello</b>", detail={"wrong": {"case": "no call"}})
    shown = page(measured, f"runs/{run.pk}/")
    assert "&lt;b&gt;Hello&lt;/b&gt;" in shown and "no call" in shown
    page(measured, "runs/0/", 404)


def test_runs_leave_as_csv(measured: Client) -> None:
    results.run(error="=1+1", ok=False, build="b9")
    found = list(csv.DictReader(io.StringIO(page(measured, "runs.csv?sha=b9"))))
    assert [(row["error"], row["ok"], row["model_id"]) for row in found] == [
        ("'=1+1", "False", "tiny")
    ]
    everything = list(csv.DictReader(io.StringIO(page(measured, "runs.csv"))))
    assert len(everything) == BenchRun.objects.count()
    assert page(measured, "runs.csv?model=x").startswith("id,ts,")


def test_nothing_comes_from_another_host(measured: Client) -> None:
    for path in PAGES[:-1]:
        text = page(measured, path)
        sources = re.findall(r'(?:src|href)="([^"]+)"', text)
        assert any("bench/charts.js" in source for source in sources)
        assert not [source for source in sources if "//" in source]


def test_targets_and_the_sweep_are_set_in_the_admin(operator: Client) -> None:
    target = {
        "name": "peer",
        "kind": "openai",
        "endpoint": "http://peer:8080",
        "enabled": "on",
        "only_models": "[]",
        "scenarios": '["chat:128"]',
        "gpus": "[]",
    }
    add = "/admin/bench/benchtarget/add/"
    for wrong in ({"endpoint": "peer"}, {"scenarios": '["talk"]'}, {"only_models": '"m"'}):
        assert operator.post(add, target | wrong).status_code == 200
    assert operator.post(add, target).status_code == 302
    assert BenchTarget.objects.get().scenarios == ["chat:128"]
    plan = {
        "samples_per_version": "7",
        "iteration_pause_s": "0",
        "request_timeout_s": "60",
        "sweep_interval_s": "60",
        "max_tokens": "32",
        "concurrency_prompt_tokens": "64",
        "scenarios": '["chat:9"]',
    }
    add = "/admin/bench/sweepplan/add/"
    assert operator.post(add, plan | {"scenarios": '["tools"]'}).status_code == 200
    assert operator.post(add, plan).status_code == 302
    assert SweepPlan.objects.get().samples_per_version == 7
    assert operator.get(add).status_code == 403
    entries = AuditEntry.objects.filter(action__startswith="bench_")
    assert {(entry.action, entry.actor) for entry in entries} == {
        ("bench_target.save", "user:olga"),
        ("bench_plan.save", "user:olga"),
    }
