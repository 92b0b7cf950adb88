"""``manage.py bench``: sweeps of a scripted endpoint over HTTP, and what is reported of results."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from django.core.management.base import CommandError

from metering.bench.models import BenchRun
from metering.management.commands import bench as command
from tests.cases import each_case
from tests.metering.bench import results
from tests.metering.bench.conftest import Bench
from tests.metering.bench.scripted_endpoint import (
    COMPLETION_TOKENS,
    DECODE_TPS,
    MODEL,
    PREFILL_TPS,
    PROMPT_TOKENS,
    Script,
)
from tests.metering.commands.command_output import refused


def test_run_sweeps_until_it_is_ended_and_measures_each_new_build(
    bench: Bench, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    class EndedError(Exception):
        pass

    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        script.build = "b2"
        if len(pauses) == 3:
            raise EndedError

    monkeypatch.setattr(command, "time", SimpleNamespace(sleep=pause))
    with pytest.raises(EndedError):
        bench(
            *("run", "--endpoint", bench.url, "--name", "peer", "--pause", "0"),
            *("--scenario", "chat:128", "--samples", "1"),
        )
    assert list(BenchRun.objects.order_by("id").values_list("build", flat=True)) == ["b1", "b2"]
    assert pauses == [1800.0] * 3


def test_every_scenario_of_an_endpoint_gives_its_numbers(bench: Bench, script: Script) -> None:
    """By the timing that the server reports. Each chat is sent three times, to warm up once."""
    words = ("chat:600", "chat:600:warm", "prefill:512", "concurrency:4")
    output = bench.once("--samples=2", *(f"--scenario={one}" for one in words))
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


@each_case(
    ("kind", "path", "num_cached"),
    [("openai", "/v1/chat/completions", 4), ("anthropic", "/v1/messages", 10)],
)
def test_without_the_servers_timing_the_clients_clock_counts(
    bench: Bench, script: Script, kind: str, path: str, num_cached: int
) -> None:
    script.reports_timing, script.asked = False, []
    words = ("--kind", kind, "--model", MODEL, "--scenario", "chat:128", "--samples", "1")
    bench.once(*words, name=kind)
    run = BenchRun.objects.get(target_name=kind)
    assert (run.timing, run.prefill_ms, run.queue_wait_ms) == ("client", None, None)
    assert run.ttft_s and run.total_s and run.ttft_s <= run.total_s
    assert run.prefill_tps == pytest.approx((PROMPT_TOKENS - num_cached) / run.ttft_s)
    assert (run.prompt_tokens_actual, run.cached_tokens) == (PROMPT_TOKENS, num_cached)
    assert {asked for asked, _ in script.asked} == {path}


def test_a_neuron_reports_its_build_its_cards_and_its_models(bench: Bench, script: Script) -> None:
    url = ("--endpoint", f"{bench.url}/api/neurons/beast", "--kind", "neuron", "--name", "beast")
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


@each_case(
    ("words", "reason"),
    [
        (("--scenario", "talk"), "scenarios: 'talk' begins with none of"),
        (("--samples", "0"), "samples_per_version: Ensure"),
        (("--target", "nobody"), "target: 'nobody' is no target: peer"),
        (("--endpoint", "beast:13131"), "not like http"),
        (("--kind", "neuron", "--endpoint", "ftp://x"), "not like http"),
        (("--endpoint", "http://127.0.0.1:9"), "nothing was measured"),
    ],
)
def test_what_cannot_be_is_refused(
    bench: Bench, script: Script, words: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(CommandError) as caught:
        bench.once(*words)
    assert reason in str(caught.value) and caught.value.returncode == 2
    BenchRun.objects.all().delete()
    script.status = 500
    with pytest.raises(CommandError) as caught:
        bench.once("--scenario", "chat:128", "--samples", "2")
    run = BenchRun.objects.get()
    assert (run.ok, run.error, caught.value.returncode) == (False, "HTTP 500: not today", 2)
    script.status = 503  # a rejection under load is a result
    bench.once("--scenario", "concurrency:3", "--samples", "1")
    run = BenchRun.objects.get(scenario_id="concurrency:3")
    assert (run.ok, run.rejected, run.decode_tps) == (True, 3, None)
    script.status = 200


def test_verdicts_and_their_exit_codes(bench: Bench) -> None:
    results.a_regression()
    decode = ("--metric", "decode_tps")
    code, table, verdict = bench.judged("beast", *decode)
    assert (code, verdict) == (1, "1 of 1 cells regressed") and "regressed" in table
    code, table, verdict = bench.judged("beast@b3", "beast@b2", *decode)
    assert (code, verdict) == (0, "") and "improved" in table and "regressed" not in table
    words = (*decode, "--scenario", "chat:128", "--min-change", "0.5", "--format", "json")
    (cell,) = json.loads(bench("compare", "beast@b2", "beast@b3", *words))["cells"]
    assert (cell["ratio"], cell["verdict"]) == (pytest.approx(0.7), "same")
    assert (cell["before_median"], cell["before_mad"]) == (100.0, pytest.approx(0.4))
    assert (cell["before_n"], cell["after_n"]) == (5, 5)
    for build in ("b1", "b2"):
        results.run(target_name="few", build=build, git_sha=build, decode_tps=9.0)
    assert bench.judged("few")[::2] == (2, "1 of 1 cells are undecided: more samples")
    for name, reason in (("peer", "no build before"), ("nobody", "no target with results")):
        assert reason in refused("bench", "compare", name, code=2)


def test_a_report_has_the_latest_build_and_views(bench: Bench) -> None:
    results.a_regression()
    table = bench("report", "--target", "beast")
    assert "| beast | tiny | chat:128 |" in table and "| b3 | 5 |" in table
    found = {row["scenario_id"]: row for row in json.loads(bench("report", "--format", "json"))}
    assert (found["load"]["n"], found["load"]["git_sha"]) == (5, "b3")
    for view in ("--scaling", "--swap", "--concurrency"):
        assert bench("report", view).startswith("| engine | model | build |")
        rows = json.loads(bench("report", view, "--target", "beast", "--format", "json"))
        assert [row["target_name"] for row in rows] == ["beast"]
