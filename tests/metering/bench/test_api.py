"""The read API: who may, and the original's fields."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.fleet.api.api_support import Api, key_api
from tests.metering.bench import results

PATHS = (
    *("health", "dimensions", "summary", "series?model=tiny&scenario=chat:128", "runs", "scaling"),
    *("concurrency", "swap", "compare?before=beast"),
)


@pytest.fixture(autouse=True)
def _needs_keys(db: None, settings: Any) -> None:
    settings.CONFIG = replace(
        settings.CONFIG, listen_host="0.0.0.0", api_key=None, allowed_hosts=("testserver",)
    )
    settings.ALLOWED_HOSTS = ["testserver"]


@pytest.fixture
def api() -> Api:
    results.a_regression()
    return key_api("fleet:read")


def test_it_is_closed_until_the_operator_opens_it(api: Api, settings: Any) -> None:
    for path in PATHS:
        Api(Client()).get(f"bench/{path}", 401)
    other = key_api("inference")
    member = Client()
    member.force_login(User.objects.create_user("mia"))
    staff = Client()
    staff.force_login(User.objects.create_user("olga", is_staff=True))
    for path in PATHS:
        other.get(f"bench/{path}", 403)
        Api(member).get(f"bench/{path}", 403)
        Api(staff).get(f"bench/{path}", 200)
    settings.CONFIG = replace(settings.CONFIG, has_public_bench=True)
    for path in PATHS:
        Api(Client()).get(f"bench/{path}", 200)
        Api(Client(), "hx-nobody").get(f"bench/{path}", 200)
    Api(Client()).post("bench/runs", {}, 403)
    Api(Client()).get("fleet", 401)


def test_health_and_dimensions(api: Api) -> None:
    assert api.get("bench/health") == {"status": "ok", "run_count": 56}
    answer = api.get("bench/dimensions")
    assert answer["hosts"] == ["", "beast.example.org"]
    assert (answer["models"], answer["targets"]) == (["tiny"], ["beast", "peer"])
    assert "chat:128" in answer["scenarios"]
    assert answer["builds"][0]["git_sha"] == "b1"
    assert set(answer["builds"][0]) == {"git_sha", "build_timestamp", "package_version"}
    assert answer["host_gpus"]["beast.example.org"] == answer["model_gpus"]["tiny"] == ["a card"]


def test_the_summary_is_of_the_latest_builds(api: Api) -> None:
    rows = {(row["target_name"], row["scenario_id"]): row for row in api.get("bench/summary")}
    chat = rows["beast", "chat:128"]
    assert (chat["git_sha"], chat["n"], chat["prompt_tokens"]) == ("b3", 5, 128)
    assert chat["decode_tps_median"] == pytest.approx(70)
    assert chat["ttft_s_p95"] == chat["ttft_s_p99"] == pytest.approx(0.2 * 1.009)
    assert rows["peer", "chat:128"]["decode_tps_median"] == pytest.approx(80)
    assert {row["target_name"] for row in api.get("bench/summary?target=peer")} == {"peer"}
    assert api.get("bench/summary?host=beast.example.org&scenario=load")[0]["n"] == 5
    assert rows["beast", "tools"]["quality_score_mean"] == pytest.approx(0.5, rel=0.01)


def test_a_series_goes_by_when_builds_were_made(api: Api) -> None:
    path = "bench/series?model=tiny&scenario=chat:128&host=beast.example.org"
    rows = api.get(path)
    assert [row["git_sha"] for row in rows] == ["b1", "b2", "b3"]
    assert [round(row["decode_tps_median"]) for row in rows] == [90, 100, 70]
    assert set(rows[0]) >= {
        *("git_sha", "build_timestamp", "package_version", "ttft_s_median"),
        *("decode_tps_median", "total_s_median", "samples"),
    }
    assert len(api.get("bench/series?model=tiny&scenario=chat:128")) == 4
    api.get("bench/series?model=tiny", 400)


def test_runs_are_single_samples(api: Api) -> None:
    rows = api.get("bench/runs?model=tiny&scenario=chat:128&sha=b3&ok=1")
    assert len(rows) == 5 and rows[0]["id"] > rows[-1]["id"]
    assert rows[0]["gpus_json"] == '["a card"]'
    assert {"ttft_s", "decode_tps", "quality_score", "ts", "ok", "error"} <= set(rows[0])
    (failed,) = api.get("bench/runs?ok=false")
    assert failed["error"] == "HTTP 500: not today"
    assert len(api.get("bench/runs?limit=2")) == 2
    assert len(api.get("bench/runs?gpu=a%20card")) == 56
    for query in ("limit=0", "limit=5001", "ok=maybe", "colour=red"):
        api.get(f"bench/runs?{query}", 400)


def test_scaling_concurrency_and_the_cost_of_loading(api: Api) -> None:
    (scaling,) = api.get("bench/scaling?target=beast&scenario=")
    contexts = [point for point in scaling["points"] if "context" in point["scenario_id"]]
    assert [point["prompt_tokens"] for point in contexts] == [512, 8192]
    assert scaling["decode_flatness"] == pytest.approx(49 / 70)
    (found,) = api.get("bench/concurrency")
    assert [point["concurrency"] for point in found["points"]] == [1, 4, 16]
    assert found["knee_concurrency"] == 4
    (swap,) = api.get("bench/swap")
    assert swap["swap_load_ms_median"] == pytest.approx(900)


def test_a_comparison_reports_what_regressed(api: Api) -> None:
    answer = api.get("bench/compare?before=beast")
    assert (answer["before"], answer["after"]) == ("beast@b2", "beast@b3")
    assert (answer["regressed"], answer["improved"]) == (1, 0)
    by_metric = {cell["metric"]: cell for cell in answer["cells"]}
    decode = by_metric["decode_tps"]
    assert (decode["verdict"], by_metric["ttft_s"]["verdict"]) == ("regressed", "same")
    assert decode["ratio"] == pytest.approx(0.7)
    assert (decode["after_mad"], decode["after_n"]) == (pytest.approx(70 * 0.004), 5)
    beside = api.get("bench/compare?before=peer&after=beast@b2")
    assert beside["improved"] == 1
    for query in ("", "before=nobody", "before=peer", "before=beast@b9"):
        api.get(f"bench/compare?{query}", 400)
    results.cell(target_name="third", scenario_id="prefill:9", ttft_s=1.0)
    api.get("bench/compare?before=beast&after=third", 404)


def test_unknown_paths_are_problems(api: Api) -> None:
    assert api.get("bench/nothing", 404)["code"] == "unknown_url"
