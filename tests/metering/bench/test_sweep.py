"""What is measured, and sweeps of busy, absent and failing targets: no process, socket or clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from metering.bench.measures import (
    DEFAULT_SCENARIOS,
    ScenarioKind,
    parse_scenario,
    parse_scenarios,
)
from metering.bench.models import BenchRun, BenchTarget, SweepPlan
from metering.bench.sweep import Sweep, fits
from metering.bench.targets import Ask, Columns, ModelInfo, NeuronTarget, Target
from metering.errors import BenchValueError, TargetError
from tests.cases import each_case
from tests.metering.bench import results

pytestmark = pytest.mark.django_db


class FakeTarget(Target):
    def __init__(
        self,
        name: str = "t",
        *,
        models: Sequence[str] = ("m",),
        busy_polls: int = 0,
        fails: Sequence[str] = (),
        is_away: bool = False,
    ) -> None:
        row = BenchTarget(name=name, kind="openai", endpoint="http://x")
        super().__init__(row, None, timeout_s=1.0)
        self.models = [ModelInfo(id=model) for model in models]
        self.busy_polls, self.fails, self.is_away = busy_polls, list(fails), is_away
        self.asked = 0

    def probe(self) -> tuple[Columns, list[ModelInfo]]:
        if self.is_away:
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

    def unload(self, model: ModelInfo) -> None: ...

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


def test_a_sweep_waits_while_others_are_served_and_between_samples() -> None:
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
    both = FakeTarget(models=("a", "b"))
    swept(both, samples_per_version=1, scenarios=["load", "chat:9", "chat:8"])
    assert [(run.model_id, run.scenario_id) for run in kept()] == [
        (model, scenario) for model in "ab" for scenario in ("chat:9", "chat:8", "load")
    ]
    assert all(run.swap_unload_ms and run.swap_load_ms for run in kept()[2::3])


def test_a_target_that_is_busy_or_away_loses_its_turn_alone() -> None:
    busy, idle = FakeTarget("busy", busy_polls=10_000), FakeTarget("idle")
    sweep = swept(busy, FakeTarget("away", is_away=True), idle)
    assert (busy.asked, idle.asked, sweep.num_ok) == (0, 3, 2)
    assert [reason.partition(" (")[0] for reason in sweep.left_out] == [
        "busy: it is busy with others' requests",
        "away: nobody is there",
    ]
    assert swept(busy, is_beside_load=True).num_ok == 2, "where that is asked"
    idle.row.only_models = ["m", "gone"]
    assert swept(idle).left_out == ["idle: gone is not loaded"]


def test_a_cell_is_measured_until_it_has_its_samples() -> None:
    for num_done, num_ok in ((0, 5), (3, 2), (5, 0), (9, 0)):
        target = FakeTarget(f"t{num_done}")
        for build in ("b", "of another build"):
            for _ in range(num_done):
                results.run(target_name=target.row.name, build=build, model_id="m")
        sweep = swept(target, samples_per_version=5)
        assert (sweep.num_ok, sweep.num_cells_done) == (num_ok, not num_ok)
        assert target.asked == (num_ok + 1 if num_ok else 0), "warmed up once"


@each_case(
    ("fails", "num_ok", "num_failed", "num_asked", "kept_errors"),
    [
        (["", "no", ""], 2, 1, 4, ["no", "", ""]),
        (["", "no", "no", "no"], 0, 2, 3, ["no", "no"]),
        (["no"], 0, 1, 1, ["no"]),  # the warm-up
    ],
)
def test_one_failure_is_tried_again_and_two_or_one_of_the_warm_up_end_the_cell(
    fails: list[str], num_ok: int, num_failed: int, num_asked: int, kept_errors: list[str]
) -> None:
    BenchRun.objects.all().delete()
    target = FakeTarget(fails=fails)
    sweep = swept(target)
    assert (sweep.num_ok, sweep.num_failed, target.asked) == (num_ok, num_failed, num_asked)
    assert [run.error for run in kept()] == kept_errors
    assert all(run.ok == (not run.error) for run in kept())


@each_case(
    "text",
    [
        *("", "talk:3", "chat", "chat:0", "chat:x", "chat:-1", "chat:1:2", "chat:128:cold"),
        *("prefill:8:warm", "concurrency:100000", "load:3", "tools", "chat:١٢"),
    ],
)
def test_what_is_no_scenario_is_refused(text: str) -> None:
    with pytest.raises(BenchValueError) as caught:
        parse_scenario(text)
    assert caught.value.field == "scenarios"
    ids = (*DEFAULT_SCENARIOS, "prefill:512", "concurrency:8", "load")
    found = [parse_scenario(text) for text in ids]
    assert [scenario.id for scenario in found] == list(ids)
    assert {scenario.kind for scenario in found} == set(ScenarioKind)
    twice = parse_scenarios(["load", "chat:8", "load"])
    assert [scenario.id for scenario in twice] == ["load", "chat:8"]


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
