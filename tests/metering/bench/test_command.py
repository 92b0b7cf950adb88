"""``manage.py bench``: sweeps of a scripted endpoint, reports, and imports of results and of the
original's configuration."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from metering.bench import services
from metering.bench.importing import read_bench_toml
from metering.bench.models import BenchRun, BenchTarget
from metering.bench.results import run_row
from metering.errors import BenchError
from metering.models import AuditEntry
from tests.metering.bench import results
from tests.metering.bench.conftest import (
    COMPLETION_TOKENS,
    DECODE_TPS,
    MODEL,
    PREFILL_TPS,
    PROMPT_TOKENS,
    URL,
    Script,
    bench,
    once,
)
from tests.metering.commands.command_output import refused

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("script")]


def test_every_scenario_of_an_endpoint_gives_its_numbers(script: Script) -> None:
    """By the timing that the server reports. Each chat is sent three times, to warm up once."""
    words = ("chat:600", "chat:600:warm", "prefill:512", "concurrency:4")
    output = once("--samples=2", *(f"--scenario={one}" for one in words))
    assert "8 measured, 0 failed, 0 had their samples" in output
    prompts = [body["messages"][0]["content"][:20] for _, body in script.asked]
    assert [len(set(prompts[start : start + 3])) for start in (0, 3)] == [3, 1]
    runs = {run.scenario_id: run for run in BenchRun.objects.all()}
    assert runs.keys() == set(words) and all(run.ok for run in runs.values())
    assert runs["prefill:512"].max_tokens == 1
    chat = runs["chat:600:warm"]
    assert (chat.timing, chat.decode_tps) == ("server", pytest.approx(DECODE_TPS, rel=0.02))
    assert chat.prefill_tps == pytest.approx(PREFILL_TPS, rel=0.02)
    assert (chat.prompt_tokens_actual, chat.completion_tokens) == (PROMPT_TOKENS, COMPLETION_TOKENS)
    assert (chat.cached_tokens, chat.target_kind, chat.build) == (4, "openai", "b1")
    assert chat.settings == {"temperature": 0, "quant": "q4"}
    busy = runs["concurrency:4"]
    assert (busy.concurrency, busy.rejected) == (4, 0)
    assert busy.completion_tokens == 4 * COMPLETION_TOKENS
    assert busy.total_s and busy.decode_tps == pytest.approx(4 * COMPLETION_TOKENS / busy.total_s)
    assert busy.ttft_p95_s and busy.ttft_s and busy.ttft_p95_s >= busy.ttft_s
    assert {run.model_id for run in runs.values()} == {MODEL}, "the other one embeds"


def test_without_the_servers_timing_the_clients_clock_counts(script: Script) -> None:
    script.reports_timing = False
    for kind, path, num_cached in (
        ("openai", "/v1/chat/completions", 4),
        ("anthropic", "/v1/messages", 10),
    ):
        script.asked.clear()
        words = ("--kind", kind, "--model", MODEL, "--scenario", "chat:128", "--samples", "1")
        once(*words, name=kind)
        run = BenchRun.objects.get(target_name=kind)
        assert (run.timing, run.prefill_ms, run.queue_wait_ms) == ("client", None, None)
        assert run.ttft_s and run.total_s and run.ttft_s <= run.total_s
        assert run.prefill_tps == pytest.approx((PROMPT_TOKENS - num_cached) / run.ttft_s)
        assert (run.prompt_tokens_actual, run.cached_tokens) == (PROMPT_TOKENS, num_cached)
        assert {asked for asked, _ in script.asked} == {path}


def test_a_neuron_reports_its_build_its_cards_and_its_models(script: Script) -> None:
    url = ("--endpoint", f"{URL}/api/neurons/beast", "--kind", "neuron", "--name", "beast")
    once = ("once", *url, "--pause", "0", "--scenario", "chat:128")
    bench(*once, "--samples", "1", "--scenario", "load")
    chat, load = BenchRun.objects.order_by("id")
    assert (chat.hostname, chat.driver_version, chat.gpus) == ("beast", "600.1", ["a card"] * 2)
    assert (chat.build, chat.git_sha, chat.package_version) == ("b1", "b1", "9.9")
    assert (chat.vram_used_mb, chat.gpu_util_pct, chat.gpu_temp_c) == (5, 9, 50)
    assert load.scenario_id == "load" and load.swap_load_ms and load.swap_unload_ms
    assert [path.rpartition("/")[2] for path, _ in script.asked[-2:]] == ["unload", "load"]
    script.locations = ["beast", "benjy"]
    script.asked.clear()
    with pytest.raises(CommandError):
        bench(*once, "--samples", "9")
    assert script.asked == [], "a model that others serve too is no measure of this neuron"


def test_what_cannot_be_or_fails_is_refused(script: Script) -> None:
    for words, reason in (
        (("--scenario", "talk"), "scenarios: 'talk' begins with none of"),
        (("--samples", "0"), "samples_per_version: Ensure"),
        (("--target", "nobody"), "target: 'nobody' is no target: peer"),
        (("--endpoint", "beast:13131"), "not like http"),
        (("--kind", "neuron", "--endpoint", "ftp://x"), "not like http"),
        (("--endpoint", "http://127.0.0.1:9"), "nothing was measured"),
    ):
        with pytest.raises(CommandError) as caught:
            once(*words)
        assert reason in str(caught.value) and caught.value.returncode == 2
    BenchRun.objects.all().delete()
    script.status = 500
    with pytest.raises(CommandError) as caught:
        once("--scenario", "chat:128", "--samples", "2")
    run = BenchRun.objects.get()
    assert (run.ok, run.error, caught.value.returncode) == (False, "HTTP 500: not today", 2)
    script.status = 503  # a rejection under load is a result
    once("--scenario", "concurrency:3", "--samples", "1")
    run = BenchRun.objects.get(scenario_id="concurrency:3")
    assert (run.ok, run.rejected, run.decode_tps) == (True, 3, None)


def judged(*words: str) -> tuple[int, str, str]:
    """The exit code of ``compare``, its table and its verdict."""
    text, verdict, code = io.StringIO(), io.StringIO(), 0
    try:
        call_command("bench", "compare", *words, stdout=text, stderr=verdict)
    except SystemExit as ended:
        code = int(ended.code or 0)
    return code, text.getvalue(), verdict.getvalue().strip()


def test_verdicts_with_their_exit_codes_and_reports() -> None:
    results.a_regression()
    decode = ("--metric", "decode_tps")
    code, table, verdict = judged("beast", *decode)
    assert (code, verdict) == (1, "1 of 1 cells regressed") and "regressed" in table
    code, table, verdict = judged("beast@b3", "beast@b2", *decode)
    assert (code, verdict) == (0, "") and "improved" in table and "regressed" not in table
    words = (*decode, "--scenario", "chat:128", "--min-change", "0.5", "--format", "json")
    (cell,) = json.loads(bench("compare", "beast@b2", "beast@b3", *words))["cells"]
    assert (cell["ratio"], cell["verdict"]) == (pytest.approx(0.7), "same")
    assert (cell["before_median"], cell["before_mad"]) == (100.0, pytest.approx(0.4))
    assert (cell["before_n"], cell["after_n"]) == (5, 5)
    table = bench("report", "--target", "beast")
    assert "| beast | tiny | chat:128 |" in table and "| b3 | 5 |" in table
    found = {row["scenario_id"]: row for row in json.loads(bench("report", "--format", "json"))}
    assert (found["load"]["n"], found["load"]["git_sha"]) == (5, "b3")
    for view in ("--scaling", "--swap", "--concurrency"):
        assert bench("report", view).startswith("| engine | model | build |")
        rows = json.loads(bench("report", view, "--target", "beast", "--format", "json"))
        assert [row["target_name"] for row in rows] == ["beast"]
    for build in ("b1", "b2"):
        results.run(target_name="few", build=build, git_sha=build, decode_tps=9.0)
    assert judged("few")[::2] == (2, "1 of 1 cells are undecided: more samples")
    for name, reason in (("peer", "no build before"), ("nobody", "no target with results")):
        assert reason in refused("bench", "compare", name, code=2)


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
    tmp_path: Path, script: Script
) -> None:
    toml = tmp_path / "helexa-bench.toml"
    toml.write_text(TOML.replace("http://peer", URL))
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
    target = "[[targets]]\nname='{}'\nkind='openai'\nendpoint='http://x'\nscenarios={}\n"
    read = read_bench_toml(
        "[scenarios]\nids=['tools', 'chat:8', 'capability:pier']\n"
        + target.format("a", "['load', 'swap']")
        + target.format("b", "['embedding']")
    )
    assert read.plan["scenarios"] == ["chat:8"]
    a, b = read.targets
    assert (a["scenarios"], a.get("enabled"), b["enabled"]) == (["load"], None, False)
    for remarks, names in (
        (
            read_bench_toml(TOML).remarks,
            "bench.db_path scenarios.image_sizes api.enabled api.listen",
        ),
        (read.remarks, "tools capability:pier swap embedding b"),
    ):
        assert [remark.partition(" is ")[0] for remark in remarks] == names.split()


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


def test_results_of_scripts_bench_are_imported_once(tmp_path: Path) -> None:
    ours, theirs = ("helexa_http", "llama_cpp")
    readings = {
        "decode, 8 at once": {ours: [100.0, 100.0], theirs: [90.0]},
        "prefill, 512 tokens": {ours: [900.0]},
        "TTFT, 4096 tokens, cold": {ours: [4.0]},
        "TTFT, 4096 tokens, prefix-warm": {ours: [0.1]},
        "memory, resident": {ours: [500.0]},
    }
    found = {name: {"unit": "", "readings": one} for name, one in readings.items()}
    whole = {"machine": "a machine", "subjects": {ours: "helexa", theirs: "0.3"}}
    file = tmp_path / "results.json"
    file.write_text(json.dumps(whole | {"measurements": found}))
    words = ("import", str(file), "--model", "smol", "--build", "abc1234")
    assert bench(*words).startswith("6 results")
    assert bench(*words).startswith("0 results")
    assert {
        (run.target_name, run.scenario_id): run.decode_tps or run.prefill_tps or run.ttft_s
        for run in BenchRun.objects.all()
    } == {
        (ours, "concurrency:8"): 100.0,
        (theirs, "concurrency:8"): 90.0,
        (ours, "prefill:512"): 900.0,
        (ours, "chat:4096"): 4.0,
        (ours, "chat:4096:warm"): 0.1,
    }
    assert set(BenchRun.objects.values_list("model_id", "build")) == {("smol", "abc1234")}
    with pytest.raises(CommandError, match="the model it measured"):
        bench("import", str(file))


def test_points_and_what_the_api_exports_are_imported_as_they_were(tmp_path: Path) -> None:
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
