"""Times and counts of streamed answers, what servers report of themselves, verdicts, and sweeps of
busy, absent and failing targets: no process, socket or clock."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps

from metering.bench import measures, services, targets
from metering.bench.client import read_answer
from metering.bench.measures import (
    DECODE,
    DEFAULT_SCENARIOS,
    JUDGED,
    LOAD,
    TTFT,
    ScenarioKind,
    Spread,
    Verdict,
    compare,
    judge,
    judged_metrics,
    median,
    parse_scenario,
    parse_scenarios,
    percentile,
    spread_of,
)
from metering.bench.models import BenchRun, BenchTarget, SweepPlan
from metering.bench.sweep import Sweep, fits
from metering.bench.targets import Ask, Columns, ModelInfo, NeuronTarget, Target
from metering.errors import BenchValueError, TargetError
from tests.cases import each_case
from tests.metering.bench import results

pytestmark = pytest.mark.django_db


def chunk(**delta: str) -> dict[str, Any]:
    return {"choices": [{"delta": delta}]}


def answered(*events: dict[str, Any], first_s: float = 1.0, last_s: float = 1.1) -> BenchRun:
    """An answer of two pieces."""
    piece = chunk(content="yes")
    later = [(event, last_s) for event in events]
    return read_answer("openai", [(piece, first_s), (piece, last_s), *later])


OPENAI = [
    (chunk(role="assistant", content=""), 0.1),
    (chunk(reasoning_content="hm"), 0.3),
    (chunk(content="yes"), 0.8),
]
ANTHROPIC = [
    ({"type": "message_start", "message": {"usage": {"input_tokens": 5}}}, 0.1),
    ({"type": "content_block_start", "content_block": {"type": "text"}}, 0.2),
    ({"type": "content_block_delta", "delta": {"type": "thinking_delta"}}, 0.3),
    ({"type": "content_block_delta", "delta": {"type": "text_delta"}}, 0.8),
    ({"type": "content_block_delta", "delta": {"type": "signature_delta"}}, 0.9),
    ({"type": "message_delta", "usage": {"output_tokens": 7}}, 1.0),
]


@each_case(
    ("kind", "events", "counts", "error"),
    [
        ("openai", OPENAI, (None, None, 2), {"error": {"message": "out of memory"}}),
        ("anthropic", ANTHROPIC, (5, 0, 7), {"type": "error", "error": "out of memory"}),
    ],
)
def test_answers_of_both_apis_are_timed_from_their_first_content(
    kind: str, events: Any, counts: tuple[Any, ...], error: dict[str, Any]
) -> None:
    run = read_answer(kind, events)
    assert (run.prompt_tokens_actual, run.cached_tokens, run.completion_tokens) == counts
    assert (run.ttft_s, run.decode_tps) == (0.3, (counts[-1] - 1) / (0.8 - 0.3))
    for stream, reason in (([(error, 0.1)], "out of memory"), ([], "empty")):
        with pytest.raises(TargetError, match=reason):
            read_answer(kind, stream)


def test_the_server_may_report_its_timing_and_what_has_no_speed() -> None:
    ours = {"prefill_ms": 2, "decode_ms": 3.5, "prefill_tokens": 4}
    theirs = {"prompt_n": 4, "prompt_ms": 2, "predicted_ms": 3.5}
    for event, timing in (
        ({"helexa_timing": ours}, ("server", 2, 3.5, 4)),
        ({"usage": {"helexa_timing": ours}}, ("server", 2, 3.5, 4)),
        ({"timings": theirs}, ("server", 2, 3.5, 4)),
        ({"usage": None}, ("client", None, None, None)),
        ({"timings": {"prompt_ms": "soon"}}, ("server", None, None, None)),
    ):
        run = answered(event)
        assert (run.timing, run.prefill_ms, run.decode_ms, run.prefill_tokens) == timing

    def used(**fields: Any) -> dict[str, Any]:
        return {"choices": [], "usage": fields}

    eleven = used(completion_tokens=11)
    assert answered(eleven).decode_tps is None
    for decode_ms, speed in ((None, 5.0), (100.0, 5.0), (1000.0, 11.0)):
        timing = {"helexa_timing": {"decode_ms": decode_ms}}
        assert answered(eleven, timing, last_s=3.0).decode_tps == speed
    for num_cached, speed in ((100, None), (0, pytest.approx(1000))):
        usage = used(prompt_tokens=100, prompt_tokens_details={"cached_tokens": num_cached})
        assert answered(usage, first_s=0.1).prefill_tps == speed


def test_what_servers_report_and_are_asked() -> None:
    for version, build in (
        ({"git_sha": "abc1234", "package_version": "0.2"}, "abc1234"),
        ({"git_sha": "abc1234", "git_dirty": True}, "abc1234-dirty"),
        ({"git_sha": "unknown", "package_version": "0.2"}, "0.2"),
        ({"version": "0.9.1"}, "0.9.1"),  # of vLLM
        ({"build_info": "b4321"}, "b4321"),  # of llama.cpp
    ):
        assert targets.build_of(version)["build"] == build
    for body in (None, 3, "x", [], {}, [3, None], {"data": [1]}, {"models": [1]}):
        assert targets.neuron_models(body) == targets.listed_models(body) == []
        assert targets.build_of(body)["build"] == "unknown", "nothing rather than an error"
        if isinstance(body, dict):
            assert not targets.has_requests(body)
            assert targets.neuron_host({"devices": body})["gpus"] == []

    text = measures.chat_prompt(85, "salt")
    words, _, ask = text.partition("\n\n")
    assert len(words.split(" ")) == max(8, 85 - measures.ASK_TOKENS)
    assert ask == f"{measures.ASK} {measures.NO_THINKING}"
    assert text == measures.chat_prompt(85, "salt") != measures.chat_prompt(85, "")
    loaded, loading = ({"node": "benjy", "status": status} for status in ("loaded", "loading"))
    for places, others in (
        ([loaded, {"node": "beast"}], ["benjy"]),
        ([loading], []),
        (["beast", "benjy"], ["benjy"]),
    ):
        assert targets.other_places({"locations": places}, "beast") == others
    assert targets.other_places(None, "beast") == []


BEFORE = [100.0, 101.5, 99.2, 100.7, 98.9]
SLOWER = [70.3, 69.1, 71.2, 70.8, 69.9]


UNCLEAR = ([17.1, 12.0, 25.1, 16.8, 17.5], [22.6, 15.9, 24.8, 22.9, 17.3])
CELL = ("m", "chat:8")
SPREAD = [98.0, 99.0, 100.0, 101.0, 102.0]
"""Its deviation is 1."""


def shifted(values: list[float], shift: float) -> list[float]:
    return [value + shift for value in values]


def test_a_regression_is_what_noise_does_not_explain() -> None:
    for metric, before, after, verdict in (
        (DECODE, BEFORE, SLOWER, Verdict.REGRESSED),
        (DECODE, SLOWER, BEFORE, Verdict.IMPROVED),
        (TTFT, BEFORE, SLOWER, Verdict.IMPROVED),
        (TTFT, SLOWER, BEFORE, Verdict.REGRESSED),
        (DECODE, BEFORE[:4], SLOWER[:4], Verdict.TOO_FEW),
        (DECODE, BEFORE, shifted(BEFORE, 2.71), Verdict.SAME),  # it matters to nobody
        (DECODE, *UNCLEAR, Verdict.UNCLEAR),  # noise may explain it
        (DECODE, *UNCLEAR[::-1], Verdict.UNCLEAR),
        (DECODE, UNCLEAR[0], UNCLEAR[0], Verdict.SAME),
        (DECODE, SPREAD, shifted(SPREAD, -6.0), Verdict.SAME),  # three times both deviations
        (DECODE, SPREAD, shifted(SPREAD, -6.1), Verdict.REGRESSED),
        (DECODE, [100.0] * 5, [97.1] * 5, Verdict.SAME),  # less than three percent
        (DECODE, [100.0] * 5, [97.0] * 5, Verdict.REGRESSED),
        (LOAD, [1.0] * 5, [0.0] * 5, Verdict.IMPROVED),
        (LOAD, [0.0] * 5, [0.8] * 5, Verdict.REGRESSED),
        (LOAD, [0.0] * 5, [0.0] * 5, Verdict.SAME),
    ):
        found = judge(metric, before, after)
        assert found is not None and found.verdict is verdict, (metric, before, after)


def test_cells_are_compared_with_their_like_by_medians_and_deviations() -> None:
    before = {
        ("m", "chat:128"): {"decode_tps": BEFORE, "ttft_s": [0.1] * 5},
        ("m", "load"): {"swap_load_ms": [1.0] * 5},
        ("gone", "load"): {"swap_load_ms": [1.0] * 5},
    }
    after = {
        ("m", "chat:128"): {"decode_tps": SLOWER, "ttft_s": [0.1] * 5},
        ("m", "load"): {"swap_load_ms": [1.0] * 5},
        ("m", "prefill:9"): {"prefill_tps": BEFORE},
    }
    found = compare(before, after)
    assert found.cells.keys() == {("m", "chat:128"), ("m", "load")}
    slower, alike = found.cells["m", "chat:128"]
    assert (slower.verdict, alike.verdict) == (Verdict.REGRESSED, Verdict.SAME)
    assert (slower.before.median, slower.after.median) == (100.0, 70.3)
    assert slower.ratio == pytest.approx(0.703)
    assert judge(DECODE, [], SLOWER) is None
    assert [found.num_with(one) for one in (Verdict.REGRESSED, Verdict.IMPROVED)] == [1, 0]
    assert found.num_undecided == 0
    assert found.only_before == [("gone", "load")]
    assert found.only_after == [("m", "prefill:9")]
    (alone,) = compare(before, before, only_metrics={"ttft_s"}).cells.values()
    assert [difference.metric for difference in alone] == [TTFT]
    assert compare(before, before, only_metrics={"total_s"}).cells == {}
    assert set(JUDGED) == set(ScenarioKind) and judged_metrics("image:1024")
    few, same = (BEFORE[:4], SLOWER), (BEFORE, BEFORE)
    for metrics, num_undecided in (
        ({"decode_tps": UNCLEAR, "ttft_s": same}, 1),
        ({"decode_tps": few}, 1),
        ({"decode_tps": few, "ttft_s": same}, 0),
    ):
        old, new = ({name: values[side] for name, values in metrics.items()} for side in (0, 1))
        assert compare({CELL: old}, {CELL: new}).num_undecided == num_undecided
    assert spread_of([]) is None and median([]) is None and percentile([], 95) is None
    assert spread_of([3.0]) == Spread(median=3.0, mad=0.0, num_samples=1)
    assert spread_of([1.0, 2.0, 4.0, 8.0]) == Spread(median=3.0, mad=1.5, num_samples=4)
    odd = [1.0, 2.0, 4.0, 8.0, 100.0]
    assert spread_of(odd) == Spread(median=4.0, mad=3.0, num_samples=5)
    ranks = [float(number) for number in range(1, 21)]
    assert [percentile(ranks, percent) for percent in (1, 50, 95, 99)] == [1, 10, 19, 20]


class FakeTarget(Target):
    def __init__(
        self, name: str = "t", *, models: str = "m", busy_polls: int = 0, fails: Sequence[str] = ()
    ) -> None:
        row = BenchTarget(name=name, kind="openai", endpoint="http://x")
        super().__init__(row, None, timeout_s=1.0)
        self.models = [ModelInfo(id=model) for model in models]
        self.busy_polls, self.fails, self.asked = busy_polls, list(fails), 0

    def probe(self) -> tuple[Columns, list[ModelInfo]]:
        if not self.models:
            raise TargetError("nobody is there")
        return {"build": "b"}, self.models

    def asker(self, model: ModelInfo) -> Ask:
        return self.ask

    def is_busy(self) -> bool:
        self.busy_polls -= 1
        return self.busy_polls >= 0

    def telemetry(self, model: ModelInfo) -> Columns:
        return {"vram_used_mb": 3}

    def load(self, model: ModelInfo) -> None: ...

    unload = load

    def ask(self, prompt: str, max_tokens: int) -> BenchRun:
        self.asked += 1
        if self.fails and (reason := self.fails.pop(0)):
            raise TargetError(reason)
        return BenchRun(ttft_s=0.1, total_s=1.2)


def swept(
    *targets: Target, slept: list[float] | None = None, is_beside_load: bool = False, **plan: object
) -> Sweep:
    slept = [] if slept is None else slept
    sweep = Sweep(
        plan=SweepPlan(**{"scenarios": ["chat:128"], "samples_per_version": 2, **plan}),
        targets=targets,
        is_beside_load=is_beside_load,
        report=lambda _text: None,
        sleep=slept.append,
        clock=lambda: sum(slept),
    )
    sweep.run()
    return sweep


def kept() -> list[BenchRun]:
    return list(BenchRun.objects.order_by("id"))


def test_a_sweep_waits_while_others_are_served_and_leaves_out_who_is_busy_or_away() -> None:
    slept: list[float] = []
    target = FakeTarget(busy_polls=3)
    sweep = swept(target, slept=slept)
    assert (sweep.num_ok, target.asked) == (2, 3)
    assert sum(slept) >= 3
    run = kept()[0]
    assert (run.model_id, run.build, run.vram_used_mb) == ("m", "b", 3)
    slept.clear()
    swept(FakeTarget("paused"), slept=slept, iteration_pause_s=7.0)
    assert sum(slept) == 21.0
    BenchRun.objects.all().delete()  # models are not swapped more than needed, unloading comes last
    swept(FakeTarget(models="ab"), samples_per_version=1, scenarios=["load", "chat:9", "chat:8"])
    assert [(run.model_id, run.scenario_id) for run in kept()] == [
        (model, scenario) for model in "ab" for scenario in ("chat:9", "chat:8", "load")
    ]
    assert all(run.swap_unload_ms and run.swap_load_ms for run in kept()[2::3])
    busy, idle = FakeTarget("busy", busy_polls=10_000), FakeTarget("idle")
    sweep = swept(busy, FakeTarget("away", models=""), idle)
    assert (busy.asked, idle.asked, sweep.num_ok) == (0, 3, 2)
    assert [reason.partition(" (")[0] for reason in sweep.left_out] == [
        "busy: it is busy with others' requests",
        "away: nobody is there",
    ]
    assert swept(busy, is_beside_load=True).num_ok == 2, "where that is asked"
    idle.row.only_models = ["m", "gone"]
    assert swept(idle).left_out == ["idle: gone is not loaded"]


def test_a_cell_is_measured_until_it_has_its_samples_or_two_failures() -> None:
    for num_done, num_ok in ((0, 5), (3, 2), (5, 0), (9, 0)):
        target = FakeTarget(f"t{num_done}")
        for build in ("b", "of another build"):
            for _ in range(num_done):
                results.run(target_name=target.row.name, build=build, model_id="m")
        sweep = swept(target, samples_per_version=5)
        assert (sweep.num_ok, sweep.num_cells_done) == (num_ok, not num_ok)
        assert target.asked == (num_ok + 1 if num_ok else 0), "warmed up once"
    for fails, counts, kept_errors in (
        (["", "no", ""], (2, 1, 4), ["no", "", ""]),
        (["", "no", "no", "no"], (0, 2, 3), ["no", "no"]),
        (["no"], (0, 1, 1), ["no"]),  # the warm-up
    ):
        BenchRun.objects.all().delete()
        target = FakeTarget(fails=fails)
        sweep = swept(target)
        assert (sweep.num_ok, sweep.num_failed, target.asked) == counts
        assert [run.error for run in kept()] == kept_errors
        assert all(run.ok == (not run.error) for run in kept())


def test_what_is_no_scenario_is_refused() -> None:
    for text in (
        *("", "talk:3", "chat", "chat:0", "chat:x", "chat:-1", "chat:1:2", "chat:128:cold"),
        *("prefill:8:warm", "concurrency:100000", "load:3", "tools", "chat:١٢"),
    ):
        with pytest.raises(BenchValueError) as caught:
            parse_scenario(text)
        assert caught.value.field == "scenarios", text
    ids = (*DEFAULT_SCENARIOS, "prefill:512", "concurrency:8", "load")
    found = [parse_scenario(text) for text in ids]
    assert [scenario.id for scenario in found] == list(ids)
    assert {scenario.kind for scenario in found} == set(ScenarioKind)
    twice = parse_scenarios(["load", "chat:8", "load"])
    assert [scenario.id for scenario in twice] == ["load", "chat:8"]


def test_a_release_before_leaves_scenarios_that_are_measured_still() -> None:
    named = ["chat:9", "context:512", "swap", "tools", "structured", "capability:pier", "embedding"]
    SweepPlan.objects.create(pk=1, scenarios=named, probes=[{"name": "pier"}], max_tokens=7)
    for name, scenarios in (("a", [*named, "load"]), ("b", ["tools"]), ("c", [])):
        row = {"name": name, "kind": "openai", "endpoint": "http://x", "scenarios": scenarios}
        BenchTarget.objects.create(**row)
    module = import_module("metering.bench.migrations.0003_four_scenarios")
    module.keep_measured_scenarios(apps, None)
    plan, targets = services.plan_find(), list(BenchTarget.objects.order_by("name"))
    for changed in (plan, *targets):
        services.row_check(changed)
    left = ["chat:9", "chat:512:warm"]
    assert (plan.scenarios, plan.max_tokens) == (left, 7)
    found = [(target.scenarios, target.enabled) for target in targets]
    assert found == [([*left, "load"], True), ([], False), ([], True)]


def test_a_model_is_measured_in_what_it_can_and_what_fits_it() -> None:
    for text, capabilities, context_tokens, is_measured in (
        ("chat:128", {"chat", "completions"}, None, True),
        ("chat:128", set(), None, True),
        ("chat:128", {"embeddings"}, None, False),
        ("load", {"embeddings"}, None, True),
        ("chat:4096", set(), 4352, True),
        ("prefill:4097", set(), 4352, False),
        ("concurrency:1000", set(), 4352, True),
    ):
        can = frozenset[str](capabilities)
        model = ModelInfo(id="m", capabilities=can, context_tokens=context_tokens)
        assert fits(parse_scenario(text), model, max_tokens=256) is is_measured, text
    row = BenchTarget(name="nobody", kind="neuron", endpoint="http://x")
    of_this_fleet = NeuronTarget(row, None, timeout_s=1.0, is_local=True)
    for refused in (of_this_fleet.probe, lambda: of_this_fleet.unload(ModelInfo(id="m"))):
        with pytest.raises(TargetError, match=r"nobody.* has reported yet"):
            refused()
