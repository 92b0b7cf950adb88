"""Results over REST and on the bench's pages: who may see them, and what regressed."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from django.test import Client

from metering.bench.models import BenchRun, BenchTarget, SweepPlan
from metering.models import AuditEntry
from tests.fleet.api.api_support import Api, key_api
from tests.metering.bench import results
from tests.metering.callers import staff

pytestmark = pytest.mark.usefixtures("listens_elsewhere", "db")

COMPARED = "?before=beast@b2&after=beast@b3"
PAGES = ("", "runs/", "runs.csv")
PATHS = (
    *("health", "dimensions", "summary", "series?model=tiny&scenario=chat:128", "runs", "scaling"),
    *("concurrency", "swap", "compare?before=beast"),
)


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


def test_the_public_may_see_results_where_the_operator_opens_them(
    measured: Client, settings: Any
) -> None:
    """Closed, they have their rows in ``tests/metering/api/test_access.py``."""
    reader = Api(staff())
    for path in PATHS:
        reader.get(f"bench/{path}", 200)
    link = 'href="/admin/dashboard/model?name=tiny">tiny</a>'
    for path in PAGES:
        assert link in page(measured, path) or path not in ("", "runs/"), path
        assert measured.post(f"/bench/{path}").status_code == 405
    settings.CONFIG = replace(settings.CONFIG, has_public_bench=True)
    for path in PAGES:
        assert "Log out" not in page(Client(), path) and link not in page(Client(), path)
    assert "Log in" in page(Client(), "")
    for path in PATHS:
        Api(Client()).get(f"bench/{path}", 200)
        Api(Client(), "hx-nobody").get(f"bench/{path}", 200)
    Api(Client()).post("bench/runs", {}, 403)
    Api(Client()).get("fleet", 401)


def test_the_overview_marks_what_regressed_and_the_knee(operator: Client) -> None:
    results.cell(decode_tps=100.0)
    assert "Nothing to compare yet: each series has one build." in page(operator, "")
    for build in ("b1", "b2"):
        results.run(build=build, git_sha=build, scenario_id="chat:512", decode_tps=100.0)
    assert "Cannot tell yet: 1 of 5 samples." in page(operator, "?before=beast@b1&after=beast@b2")
    BenchRun.objects.all().delete()
    results.a_regression()
    text = page(operator, "")
    assert "1 regressed beyond noise." in text
    (row,) = [row for row in rows(text) if row.startswith("data-regressed")]
    assert row.startswith("data-regressed beast chat:128 decode 70 ± 0.28 tok/s b3 5 regressed")
    assert "0.700 of 100 ± 0.4, b2" in row
    (line,) = chart(text, "knee")["lines"]
    assert [point["is_marked"] for point in line["points"]] == [False, True, False]
    text = page(operator, "?scenario=load")
    assert any(row.startswith("beast load load 900") for row in rows(text))
    assert "chat:128 decode" not in " ".join(rows(text)) and 'id="knee"' not in text


def test_trends_draw_builds_and_dash_what_others_gave(measured: Client) -> None:
    text = page(measured, "?model=tiny&scenario=chat:128&target=beast")
    drawn = chart(text, "trend-decode_tps")
    own, baseline = drawn["lines"]
    assert drawn["labels"] == ["b1", "b2", "b3"]
    assert (own["name"], own["is_baseline"]) == ("beast", False)
    assert [round(point) for point in own["points"]] == [90, 100, 70]
    assert own["marked"] == [False, False, True]
    assert (baseline["name"], baseline["is_baseline"]) == ("peer", True)
    assert [round(point) for point in baseline["points"]] == [80, 80, 80]
    assert chart(text, "trend-ttft_s")["lines"][0]["marked"] == [False, False, False]
    again = chart(page(measured, "?model=tiny&scenario=chat:128"), "trend-decode_tps")
    assert again == drawn, "the target of most builds is chosen"
    assert "trend-" not in page(measured, "?model=tiny")


def test_two_builds_are_compared_cell_by_cell(measured: Client, api: Api) -> None:
    text = page(measured, COMPARED)
    (row,) = [row for row in rows(text) if row.startswith("data-regressed")]
    assert "tiny chat:128 decode tok/s 100 ± 0.4 70 ± 0.28 0.700" in row and "5/5 regressed" in row
    assert "1 regressed" in text and "only beast@b3: tiny load" in text
    answer = api.get("bench/compare?before=beast")
    assert (answer["before"], answer["after"]) == ("beast@b2", "beast@b3")
    assert (answer["regressed"], answer["improved"]) == (1, 0)
    by_metric = {cell["metric"]: cell for cell in answer["cells"]}
    decode = by_metric["decode_tps"]
    assert (decode["verdict"], by_metric["ttft_s"]["verdict"]) == ("regressed", "same")
    assert (decode["ratio"], decode["after_n"]) == (pytest.approx(0.7), 5)
    assert api.get("bench/compare?before=peer&after=beast@b2")["improved"] == 1
    for query in ("", "before=nobody", "before=peer", "before=beast@b9"):
        api.get(f"bench/compare?{query}", 400)
    results.cell(target_name="third", scenario_id="prefill:9", ttft_s=1.0)
    api.get("bench/compare?before=beast&after=third", 404)


def test_runs_are_filtered_shown_and_leave_as_csv(measured: Client) -> None:
    assert "56 runs" in page(measured, "runs/")
    text = page(measured, "runs/?ok=false")
    assert "1 run<" in text and "HTTP 500: not today" in text
    assert "There is none." in page(measured, "runs/?model=x")
    assert "neither true nor false" in page(measured, "runs/?ok=maybe", 400)
    detail = {"wrong": {"case": "no call"}}
    run = results.run(decode_tps=40.0, artifact="<b>Hello</b>", detail=detail)
    shown = page(measured, f"runs/{run.pk}/")
    assert "&lt;b&gt;Hello&lt;/b&gt;" in shown and "no call" in shown
    page(measured, "runs/0/", 404)
    results.run(error="=1+1", ok=False, build="b9")
    (row,) = csv.DictReader(io.StringIO(page(measured, "runs.csv?sha=b9")))
    assert (row["error"], row["ok"], row["model_id"]) == ("'=1+1", "False", "tiny")
    everything = list(csv.DictReader(io.StringIO(page(measured, "runs.csv"))))
    assert len(everything) == BenchRun.objects.count()
    assert page(measured, "runs.csv?model=x").startswith("id,ts,")


def test_targets_and_the_sweep_are_set_in_the_admin(operator: Client) -> None:
    where = "/admin/bench/{}/add/"
    target = {"name": "peer", "kind": "openai", "endpoint": "http://peer:8080", "enabled": "on"}
    target |= {"only_models": "[]", "scenarios": '["chat:128"]', "gpus": "[]"}
    add = where.format("benchtarget")
    for field, wrong in (
        *(("endpoint", "peer"), ("scenarios", '["talk"]'), ("only_models", '"m"')),
        *(("api_key_env", name) for name in ("DATABASE_URL", "HELEXA_SECRET_KEY", "PEER KEY")),
    ):
        response = operator.post(add, target | {field: wrong})
        assert response.status_code == 200 and not BenchTarget.objects.exists(), field
    assert "no name of a variable, or a secret" in response.text
    assert operator.post(add, target).status_code == 302
    assert BenchTarget.objects.get().scenarios == ["chat:128"]
    numbers = ("iteration_pause_s", "request_timeout_s", "sweep_interval_s", "max_tokens")
    plan = dict.fromkeys((*numbers, "concurrency_prompt_tokens"), "60")
    plan |= {"samples_per_version": "7", "scenarios": '["chat:9"]'}
    add = where.format("sweepplan")
    assert operator.post(add, plan | {"scenarios": '["tools"]'}).status_code == 200
    assert operator.post(add, plan).status_code == 302
    assert SweepPlan.objects.get().samples_per_version == 7
    assert operator.get(add).status_code == 403
    audited = AuditEntry.objects.filter(action__startswith="bench_").order_by("id")
    assert [(entry.action, entry.actor) for entry in audited] == [
        ("bench_target.save", "user:carol"),
        ("bench_plan.save", "user:carol"),
    ]


@pytest.fixture
def api(measured: Client) -> Api:
    return key_api("fleet:read")


def test_runs_and_summaries_of_builds_over_rest(api: Api) -> None:
    assert api.get("bench/health") == {"status": "ok", "run_count": 56}
    answer = api.get("bench/dimensions")
    assert answer["hosts"] == ["", "beast.example.org"]
    assert (answer["models"], answer["targets"]) == (["tiny"], ["beast", "peer"])
    assert "chat:128" in answer["scenarios"] and answer["builds"][0]["git_sha"] == "b1"
    assert set(answer["builds"][0]) == {"git_sha", "build_timestamp", "package_version"}
    assert answer["host_gpus"]["beast.example.org"] == answer["model_gpus"]["tiny"] == ["a card"]
    runs = api.get("bench/runs?model=tiny&scenario=chat:128&sha=b3&ok=1&gpu=a%20card")
    assert len(runs) == 5 and runs[0]["id"] > runs[-1]["id"]
    assert runs[0]["gpus_json"] == '["a card"]'
    assert len(api.get("bench/runs?limit=2")) == 2
    for query in ("runs?limit=0", "runs?limit=5001", "runs?ok=maybe", "runs?colour=red"):
        api.get(f"bench/{query}", 400)
    api.get("bench/series?model=tiny", 400)
    rows = {(row["target_name"], row["scenario_id"]): row for row in api.get("bench/summary")}
    chat = rows["beast", "chat:128"]
    assert (chat["git_sha"], chat["n"], chat["prompt_tokens"]) == ("b3", 5, 128)
    assert chat["decode_tps_median"] == pytest.approx(70)
    assert chat["ttft_s_p95"] == chat["ttft_s_p99"] == pytest.approx(0.2 * 1.009)
    assert rows["beast", "tools"]["quality_score_mean"] == pytest.approx(0.5, rel=0.01)
    assert {row["target_name"] for row in api.get("bench/summary?target=peer")} == {"peer"}
    assert api.get("bench/summary?host=beast.example.org&scenario=load")[0]["n"] == 5
    path = "bench/series?model=tiny&scenario=chat:128"
    assert len(api.get(path)) == 4
    points = api.get(f"{path}&host=beast.example.org")
    assert [row["git_sha"] for row in points] == ["b1", "b2", "b3"]
    assert [round(row["decode_tps_median"]) for row in points] == [90, 100, 70]
    (scaling,) = api.get("bench/scaling?target=beast&scenario=")
    contexts = [point for point in scaling["points"] if "context" in point["scenario_id"]]
    assert [point["prompt_tokens"] for point in contexts] == [512, 8192]
    assert scaling["decode_flatness"] == pytest.approx(49 / 70)
    (found,) = api.get("bench/concurrency")
    assert [point["concurrency"] for point in found["points"]] == [1, 4, 16]
    assert found["knee_concurrency"] == 4
    (cost,) = api.get("bench/swap")
    assert cost["swap_load_ms_median"] == pytest.approx(900)
