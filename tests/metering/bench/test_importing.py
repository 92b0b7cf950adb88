"""Imports: the original's configuration, and results. Rows of earlier releases."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.management.base import CommandError

from metering.bench import services
from metering.bench.importing import read_bench_toml
from metering.bench.models import BenchRun, BenchTarget, SweepPlan
from metering.bench.results import run_row
from metering.errors import BenchError
from metering.models import AuditEntry
from tests.metering.bench import results
from tests.metering.bench.conftest import Bench
from tests.metering.bench.scripted_endpoint import Script

TOML = """
[bench]
sweep_interval_secs = 900
samples_per_version = 2
iteration_pause_secs = 0
request_timeout_secs = 60
db_path = "/var/lib/helexa-bench/bench.sqlite"

[scenarios]
prompt_sizes = [128]
max_tokens = 64
concurrency_levels = [2]
concurrency_prompt_tokens = 100
image_sizes = [1024]

[api]
enabled = true
listen = "0.0.0.0:13132"

[[targets]]
name = "peer"
kind = "openai"
endpoint = "http://peer"
label = "the other one"
"""


def test_the_originals_configuration_is_imported_or_swept_by(
    bench: Bench, tmp_path: Path, script: Script
) -> None:
    toml = tmp_path / "helexa-bench.toml"
    toml.write_text(TOML.replace("http://peer", bench.url))
    bench("once", "--config", str(toml))
    assert BenchTarget.objects.count() == 0
    assert BenchRun.objects.filter(ok=True, model_id="scripted").count() == 6
    assert "0 results and 1 targets" in bench("import", str(toml))
    target = BenchTarget.objects.get()
    assert (target.name, target.label, target.enabled) == ("peer", "the other one", True)
    plan = services.plan_find()
    assert (plan.samples_per_version, plan.max_tokens) == (2, 64)
    assert plan.scenarios == ["chat:128", "chat:128:warm", "concurrency:2"]
    actions = set(AuditEntry.objects.values_list("action", flat=True))
    assert {"bench_plan.save", "bench_target.save"} <= actions
    bench("import", str(toml))
    assert BenchTarget.objects.count() == 1
    script.build = "b2"
    bench("once")
    assert BenchRun.objects.filter(ok=True, build="b2", model_id="scripted").count() == 6


def test_fields_without_meaning_here_and_earlier_scenarios_are_reported() -> None:
    def remarked(remarks: Sequence[str]) -> list[str]:
        return [remark.partition(" is ")[0] for remark in remarks]

    assert remarked(read_bench_toml(TOML).remarks) == [
        *("bench.db_path", "scenarios.image_sizes", "api.enabled", "api.listen")
    ]
    target = "[[targets]]\nname='{}'\nkind='openai'\nendpoint='http://x'\nscenarios={}\n"
    read = read_bench_toml(
        "[scenarios]\nids=['tools', 'chat:8', 'capability:pier']\n"
        + target.format("a", "['load', 'swap']")
        + target.format("b", "['embedding']")
    )
    assert read.plan["scenarios"] == ["chat:8"]
    a, b = read.targets
    assert (a["scenarios"], a.get("enabled"), b["enabled"]) == (["load"], None, False)
    assert remarked(read.remarks) == ["tools", "capability:pier", "swap", "embedding", "b"]


def test_a_file_with_nothing_we_know_is_refused() -> None:
    target = "[[targets]]\nname='x'"
    for text, reason in (
        ("[bench", "no helexa-bench.toml: Expected"),
        ("[benches]", "no table benches"),
        ("[bench]\nsamples = 3", "no bench.samples that is 3"),
        ("[bench]\nsamples_per_version = 'x'", "samples_per_version: .*integer"),
        ("[bench]\niteration_pause_secs = -1", "iteration_pause_s: .*greater than"),
        ("[bench]\nmax_tokens = 3", "no bench.max_tokens that is 3"),
        ("[scenarios]\nmax_tokens = 2.5", "no max_tokens that is 2.5"),
        ("[scenarios]\nids = 3", "no scenarios.ids that is 3"),
        ("bench = 3", "no table bench"),
        ("targets = 3", "no list of targets"),
        ("targets = [3]", "no list of targets"),
        ("[scenarios]\nprompt_sizes = [0]", "is no number from 1"),
        (target, "a target: kind: .*blank"),
        (f"{target}\nkind='openai'\nendpoint='http://x'\nport=3", "a target has no port"),
    ):
        with pytest.raises(BenchError, match=reason):
            read_bench_toml(text)


def test_results_of_scripts_bench_are_imported_once(bench: Bench, tmp_path: Path) -> None:
    readings = {
        "decode, 8 at once": {"helexa_http": [100.0, 100.0], "llama_cpp": [90.0]},
        "prefill, 512 tokens": {"helexa_http": [900.0]},
        "TTFT, 4096 tokens, cold": {"helexa_http": [4.0]},
        "TTFT, 4096 tokens, prefix-warm": {"helexa_http": [0.1]},
        "memory, resident": {"helexa_http": [500.0]},
    }
    found = {name: {"unit": "", "readings": one} for name, one in readings.items()}
    whole = {"machine": "a machine", "subjects": {"helexa_http": "helexa", "llama_cpp": "0.3"}}
    file = tmp_path / "results.json"
    file.write_text(json.dumps(whole | {"measurements": found}))
    words = ("import", str(file), "--model", "smol", "--build", "abc1234")
    assert bench(*words).startswith("6 results")
    assert bench(*words).startswith("0 results")
    imported = {
        (run.target_name, run.scenario_id): run.decode_tps or run.prefill_tps or run.ttft_s
        for run in BenchRun.objects.all()
    }
    assert imported == {
        ("helexa_http", "concurrency:8"): 100.0,
        ("llama_cpp", "concurrency:8"): 90.0,
        ("helexa_http", "prefill:512"): 900.0,
        ("helexa_http", "chat:4096"): 4.0,
        ("helexa_http", "chat:4096:warm"): 0.1,
    }
    assert set(BenchRun.objects.values_list("model_id", "build")) == {("smol", "abc1234")}
    with pytest.raises(CommandError, match="the model it measured"):
        bench("import", str(file))


def test_points_and_what_the_api_exports_are_imported_as_they_were(
    bench: Bench, tmp_path: Path
) -> None:
    file = tmp_path / "points.json"

    def imported(*points: Any) -> None:
        BenchRun.objects.all().delete()
        file.write_text(json.dumps(points))
        bench("import", str(file))

    def exported() -> list[dict[str, Any]]:
        rows = [run_row(run) for run in BenchRun.objects.order_by("id")]
        return [{k: v for k, v in row.items() if k not in {"id", "origin"}} for row in rows]

    results.run(devices=[{"index": 0}], settings={"machine": "m"}, concurrency=8, decode_tps=21.5)
    results.run(ok=False, error="timeout", hostname="", gpus=[])
    before = exported()
    imported(*before)
    assert exported() == before
    names = {"target_name": "baseline", "model_id": "smol", "scenario_id": "chat:128:warm"}
    point = names | {"git_sha": "8f6f1d3", "decode_tps": 21, "gpus": ["a card"]}
    imported(point | {"build_timestamp": "2026-06-01T00:00:00Z"})
    run = BenchRun.objects.get()
    assert (run.build, run.decode_tps, run.gpus) == ("8f6f1d3", 21.0, ["a card"])
    assert run.build_timestamp == datetime(2026, 6, 1, tzinfo=UTC)
    columns: tuple[dict[str, Any], ...] = (
        *({"speed": 3}, {"ttft_s": "x"}, {"max_tokens": 2.5}, {"max_tokens": -1}),
        *({"gpus": "a card"}, {"detail": []}, {"hostname": 3}, {"ts": "soon"}, {"timing": "x"}),
    )
    for wrong in (*(point | each for each in columns), {"model_id": "m"}, 3):
        with pytest.raises(CommandError):
            imported(wrong)
    file.write_text("{}")
    with pytest.raises(CommandError, match="neither a list of points"):
        bench("import", str(file))


@pytest.mark.django_db
def test_scenarios_that_are_gone_leave_the_plan_and_the_targets() -> None:
    named = ["chat:9", "context:512", "swap", "tools", "structured", "capability:pier", "embedding"]
    SweepPlan.objects.create(pk=1, scenarios=named, probes=[{"name": "pier"}], max_tokens=7)
    for name, scenarios in (("a", [*named, "load"]), ("b", ["tools"]), ("c", [])):
        BenchTarget.objects.create(
            name=name, kind="openai", endpoint="http://x", scenarios=scenarios
        )
    module = import_module("metering.bench.migrations.0003_four_scenarios")
    module.keep_measured_scenarios(apps, None)
    plan, targets = services.plan_find(), list(BenchTarget.objects.all())
    for row in (plan, *targets):
        services.row_check(row)
    assert (plan.scenarios, plan.max_tokens) == (["chat:9", "chat:512:warm"], 7)
    assert {target.name: (target.scenarios, target.enabled) for target in targets} == {
        "a": (["chat:9", "chat:512:warm", "load"], True),
        "b": ([], False),
        "c": ([], True),
    }
