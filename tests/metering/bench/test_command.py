"""``manage.py bench``: sweeps of a scripted endpoint over HTTP, and what is reported of results."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from django.core.management.base import CommandError
from django.utils import timezone

from fleet.models import Neuron
from helexa_site import server_url
from metering.bench import choosing
from metering.bench.management.commands import bench as command
from metering.bench.models import BenchRun
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


def prompts(script: Script) -> list[str]:
    return [body["messages"][0]["content"] for _, body in script.asked]


def test_a_cell_is_measured_once_warmed_up_and_then_skipped(bench: Bench, script: Script) -> None:
    output = bench.once("--scenario", "chat:128", "--samples", "3")
    assert "3 measured, 0 failed, 0 had their samples" in output
    assert len(script.asked) == 4
    output = bench.once("--scenario", "chat:128", "--samples", "3")
    assert "0 measured, 0 failed, 1 had their samples" in output
    assert len(script.asked) == 4
    bench.once("--scenario", "chat:128", "--samples", "5")
    assert BenchRun.objects.count() == 5
    script.build = "b2"
    bench.once("--scenario", "chat:128", "--samples", "3")
    assert BenchRun.objects.filter(build="b2", ok=True).count() == 3


def test_the_running_server_is_found_as_status_finds_it(
    bench: Bench, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ``--url`` the fleet's neurons are measured at the serve of this data directory."""
    now = timezone.now()
    Neuron.objects.create(
        name="beast", status="online", status_since=now, started_at=now, last_seen_at=now
    )
    running = SimpleNamespace(url=bench.url, key="hx-its-own")
    monkeypatch.setattr(server_url, "find_running", lambda _data_dir: running)
    monkeypatch.delenv("HELEXA_URL", raising=False)
    (found,) = choosing.sweep_of(choosing.SweepChoice(), print).targets
    assert (found.row.endpoint, found.api_key) == (bench.url, "hx-its-own")


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


def test_cold_prompts_are_new_and_warm_ones_the_same(bench: Bench, script: Script) -> None:
    bench.once("--scenario", "chat:200", "--samples", "2")
    cold = prompts(script)
    assert len({prompt[:20] for prompt in cold}) == len(cold) == 3
    script.asked.clear()
    bench.once("--scenario", "chat:200:warm", "--samples", "2")
    assert len(set(prompts(script))) == 1


def test_every_scenario_of_an_endpoint_gives_its_numbers(bench: Bench, script: Script) -> None:
    words = ("prefill:512", "chat:600:warm", "concurrency:4")
    bench.once("--samples", "1", *(word for one in words for word in ("--scenario", one)))
    runs = {run.scenario_id: run for run in BenchRun.objects.all()}
    assert runs.keys() == set(words)
    assert all(run.ok for run in runs.values())
    assert runs["prefill:512"].max_tokens == 1
    assert runs["chat:600:warm"].decode_tps == pytest.approx(DECODE_TPS, rel=0.02)
    busy = runs["concurrency:4"]
    assert (busy.concurrency, busy.rejected) == (4, 0)
    assert busy.completion_tokens == 4 * COMPLETION_TOKENS
    assert busy.total_s and busy.decode_tps == pytest.approx(4 * COMPLETION_TOKENS / busy.total_s)
    assert busy.ttft_p95_s and busy.ttft_s and busy.ttft_p95_s >= busy.ttft_s
    assert {run.model_id for run in runs.values()} == {MODEL}, "the other one embeds"


def test_what_fails_does_not_count_and_is_tried_again(bench: Bench, script: Script) -> None:
    script.status = 500
    with pytest.raises(CommandError) as caught:
        bench.once("--scenario", "chat:128", "--samples", "2")
    assert caught.value.returncode == 2
    run = BenchRun.objects.get()
    assert (run.ok, run.error) == (False, "HTTP 500: not today")
    script.status = 200
    bench.once("--scenario", "chat:128", "--samples", "2")
    assert BenchRun.objects.filter(ok=True).count() == 2
    script.status = 503
    bench.once("--scenario", "concurrency:3", "--samples", "1")
    run = BenchRun.objects.get(scenario_id="concurrency:3")
    assert (run.ok, run.rejected, run.decode_tps) == (True, 3, None), "that is a result"


@each_case("reports_timing", [True, False])
def test_the_servers_own_timing_counts_and_without_it_the_clients_clock(
    bench: Bench, script: Script, reports_timing: bool
) -> None:
    script.reports_timing = reports_timing
    bench.once("--scenario", "chat:128", "--samples", "1", name=f"peer-{reports_timing}")
    run = BenchRun.objects.get(target_name=f"peer-{reports_timing}")
    assert run.ok and run.ttft_s is not None and run.total_s is not None
    assert run.ttft_s <= run.total_s
    if reports_timing:
        assert run.timing == "server"
        assert run.decode_tps == pytest.approx(DECODE_TPS, rel=0.02)
        assert run.prefill_tps == pytest.approx(PREFILL_TPS, rel=0.02)
    else:
        assert (run.timing, run.prefill_ms, run.queue_wait_ms) == ("client", None, None)
        assert run.prefill_tps == pytest.approx((PROMPT_TOKENS - 4) / run.ttft_s)
    assert (run.prompt_tokens_actual, run.completion_tokens) == (PROMPT_TOKENS, COMPLETION_TOKENS)
    assert (run.cached_tokens, run.target_kind, run.model_id) == (4, "openai", MODEL)
    assert (run.build, run.settings) == ("b1", {"temperature": 0, "quant": "q4"})


def test_anthropics_api_is_measured_as_well(bench: Bench, script: Script) -> None:
    bench.once("--kind", "anthropic", "--scenario", "chat:128", "--samples", "1", "--model", MODEL)
    run = BenchRun.objects.get()
    assert (run.target_kind, run.timing) == ("anthropic", "client")
    assert (run.prompt_tokens_actual, run.cached_tokens) == (100, 10)
    assert {path for path, _ in script.asked} == {"/v1/messages"}


def neuron(bench: Bench, *words: str) -> None:
    url = f"{bench.url}/api/neurons/beast"
    bench("once", "--endpoint", url, "--kind", "neuron", "--name", "beast", "--pause", "0", *words)


def test_a_neuron_reports_its_build_its_cards_and_its_models(bench: Bench, script: Script) -> None:
    neuron(bench, "--samples", "1", "--scenario", "chat:128", "--scenario", "load")
    chat, load = BenchRun.objects.order_by("id")
    assert (chat.hostname, chat.driver_version, chat.gpus) == ("beast", "600.1", ["a card"] * 2)
    assert (chat.build, chat.git_sha, chat.package_version) == ("b1", "b1", "9.9")
    assert (chat.vram_used_mb, chat.gpu_util_pct, chat.gpu_temp_c) == (5, 9, 50)
    assert load.scenario_id == "load" and load.swap_load_ms and load.swap_unload_ms
    assert [path.rpartition("/")[2] for path, _ in script.asked[-2:]] == ["unload", "load"]
    script.locations = ["beast", "benjy"]
    script.asked.clear()
    with pytest.raises(CommandError):
        neuron(bench, "--samples", "9", "--scenario", "chat:128")
    assert script.asked == [], "a model that others serve too is no measure of this neuron"


@each_case(
    ("words", "reason"),
    [
        (("--scenario", "talk"), "scenarios: 'talk' begins with none of"),
        (("--samples", "0"), "samples_per_version: 0 is too little"),
        (("--target", "nobody"), "target: 'nobody' is no target: peer"),
        (("--endpoint", "beast:13131"), "not like http"),
        (("--kind", "neuron", "--endpoint", "ftp://x"), "not like http"),
        (("--endpoint", "http://127.0.0.1:9"), "nothing was measured"),
    ],
)
def test_what_cannot_be_is_refused(bench: Bench, words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(CommandError) as caught:
        bench.once(*words)
    assert reason in str(caught.value)
    assert caught.value.returncode == 2


def test_two_sweeps_are_compared_and_reported(bench: Bench, script: Script) -> None:
    """By the timings that the server reports, which are 30 % slower in the second build."""
    sweep = ("--scenario", "chat:128", "--scenario", "chat:300:warm", "--samples", "5")
    for script.build, script.speed in (("b1", 1.0), ("b2", 0.7)):
        bench.once(*sweep)
    words = ("peer", "--metric", "decode_tps")
    code, _, verdict = bench.judged(*words)
    assert (code, verdict) == (1, "2 of 2 cells regressed")
    words = ("--metric", "decode_tps", "--scenario", "chat:128", "--min-change", "0.5")
    comparison = json.loads(bench("compare", "peer@b1", "peer@b2", "--format", "json", *words))
    (cell,) = comparison["cells"]
    assert cell["ratio"] == pytest.approx(0.7, abs=0.02)
    assert cell["before_median"] == pytest.approx(DECODE_TPS, rel=0.02)
    assert 0 < cell["before_mad"] < 0.01 * cell["before_median"]
    assert (cell["before_n"], cell["after_n"], cell["verdict"]) == (5, 5, "same")
    table = bench("report")
    assert "| peer | scripted | chat:128 |" in table and "| b2 | 5 |" in table
    (chat, warm) = json.loads(bench("report", "--format", "json"))
    assert (chat["scenario_id"], chat["n"], chat["git_sha"]) == ("chat:128", 5, "b2")
    assert warm["decode_tps_median"] == pytest.approx(0.7 * DECODE_TPS, rel=0.02)


def test_verdicts_and_their_exit_codes(bench: Bench) -> None:
    results.a_regression()
    code, table, verdict = bench.judged("beast@b3", "beast@b2", "--metric", "decode_tps")
    assert (code, verdict) == (0, "") and "improved" in table and "regressed" not in table
    code, table, verdict = bench.judged("beast@b1", "beast@b1")
    assert (code, verdict) == (0, "") and "same" in table
    for build in ("b1", "b2"):
        results.run(target_name="few", build=build, git_sha=build, decode_tps=9.0)
    code, table, verdict = bench.judged("few")
    assert (code, verdict) == (2, "1 of 1 cells are undecided: more samples")
    assert "too few samples" in table
    for name, reason in (("peer", "no build before"), ("nobody", "no target with results")):
        assert reason in refused("bench", "compare", name, code=2)


@each_case("view", ["--scaling", "--swap", "--concurrency"])
def test_views_of_a_report(bench: Bench, view: str) -> None:
    results.a_regression()
    assert bench("report", view).startswith("| engine | model | build |")
    found = json.loads(bench("report", view, "--target", "beast", "--format", "json"))
    assert [row["target_name"] for row in found] == ["beast"]
