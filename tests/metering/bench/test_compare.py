"""The result of a sweep of a build that is 30 % slower, by the timings that the server reports."""

from __future__ import annotations

import json

import pytest
from django.core.management.base import CommandError
from django.test import Client

from tests.metering.bench.conftest import Bench
from tests.metering.bench.scripted_endpoint import DECODE_TPS, Script

SWEEP = ("--scenario", "chat:128", "--scenario", "chat:300:warm", "--samples", "5")


@pytest.fixture
def two_builds(bench: Bench, script: Script) -> Bench:
    bench.once(*SWEEP)
    script.build, script.speed = "b2", 0.7
    bench.once(*SWEEP)
    return bench


def test_a_slower_build_is_a_regression(two_builds: Bench) -> None:
    code, _, verdict = two_builds.judged("peer", "--metric", "decode_tps")
    assert (code, verdict) == (1, "2 of 2 cells regressed")


def test_it_is_found_by_name_and_reported_with_its_ratio(two_builds: Bench) -> None:
    words = ("--metric", "decode_tps", "--scenario", "chat:128", "--min-change", "0.5")
    comparison = json.loads(two_builds("compare", "peer@b1", "peer@b2", "--format", "json", *words))
    (cell,) = comparison["cells"]
    assert cell["ratio"] == pytest.approx(0.7, abs=0.02)
    assert cell["before_median"] == pytest.approx(DECODE_TPS, rel=0.02)
    assert 0 < cell["before_mad"] < 0.01 * cell["before_median"]
    assert (cell["before_n"], cell["after_n"], cell["verdict"]) == (5, 5, "same")


def test_the_other_way_round_it_is_none(two_builds: Bench) -> None:
    comparison = two_builds("compare", "peer@b2", "peer@b1", "--metric", "decode_tps")
    assert "improved" in comparison and "regressed" not in comparison


def test_the_same_build_does_not_regress(two_builds: Bench) -> None:
    code, table, verdict = two_builds.judged("peer@b1", "peer@b1")
    assert (code, verdict) == (0, "") and "same" in table


def test_one_build_has_none_before_it(bench: Bench) -> None:
    bench.once("--scenario", "chat:128", "--samples", "1")
    with pytest.raises(CommandError) as caught:
        bench("compare", "peer")
    assert caught.value.returncode == 2
    assert "no build before" in str(caught.value)
    with pytest.raises(CommandError, match="no target with results"):
        bench("compare", "nobody")


def test_few_samples_are_no_verdict(bench: Bench, script: Script) -> None:
    for script.build, script.speed in (("b1", 1.0), ("b2", 0.5)):
        bench.once("--scenario", "chat:128", "--samples", "3")
    code, table, verdict = bench.judged("peer")
    assert (code, verdict) == (2, "1 of 1 cells are undecided: more samples")
    assert "too few samples" in table


def test_reports_are_tables_and_json(two_builds: Bench) -> None:
    table = two_builds("report")
    assert "| peer | scripted | chat:128 |" in table and "| b2 | 5 |" in table
    (chat, warm) = json.loads(two_builds("report", "--format", "json"))
    assert (chat["scenario_id"], chat["n"], chat["git_sha"]) == ("chat:128", 5, "b2")
    assert warm["decode_tps_median"] == pytest.approx(0.7 * DECODE_TPS, rel=0.02)
    (scaling,) = json.loads(two_builds("report", "--scaling", "--format", "json"))
    assert len(scaling["points"]) == 2 and scaling["decode_flatness"] == pytest.approx(1, abs=0.02)
    for view in ("--scaling", "--swap", "--concurrency"):
        assert two_builds("report", view).startswith("| engine | model | build |")


def test_the_api_and_the_pages_show_it(two_builds: Bench, admin_client: Client) -> None:
    comparison = admin_client.get("/api/bench/compare?before=peer").json()
    verdicts = {
        (cell["scenario_id"], cell["metric"]): cell["verdict"] for cell in comparison["cells"]
    }
    for cell in (("chat:128", "decode_tps"), ("chat:300:warm", "decode_tps")):
        assert verdicts[cell] == "regressed"
    for path in ("", "?before=peer@b1&after=peer@b2"):
        assert "data-regressed" in admin_client.get(f"/bench/{path}").content.decode()
    trends = admin_client.get("/bench/?model=scripted&scenario=chat:128").content.decode()
    assert '"marked": [false, true]' in trends
