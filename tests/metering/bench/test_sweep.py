"""What is measured, and sweeps of busy, absent and failing targets: no process, socket or clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from metering.bench.answers import Answer
from metering.bench.client import Asker
from metering.bench.errors import BenchValueError, SampleFailedError, TargetUnreachableError
from metering.bench.models import BenchRun, BenchTarget, SweepPlan
from metering.bench.probing import BuildInfo, HostInfo, ModelInfo, Probed, Telemetry
from metering.bench.scenarios import (
    DEFAULT_SCENARIOS,
    ScenarioKind,
    fits,
    parse_scenario,
    parse_scenarios,
)
from metering.bench.sweep import Sweep, SweepResult
from metering.bench.targets import LocalDoor, TargetSpec
from tests.cases import each_case


@dataclass
class FakeTarget:
    """Stands for a target, and is its own asker."""

    models: tuple[ModelInfo, ...] = (ModelInfo(id="m"),)
    busy_polls: int = 0
    fails: list[str] = field(default_factory=list)
    is_away: bool = False
    asked: int = 0

    def probe(self) -> Probed:
        if self.is_away:
            raise TargetUnreachableError("nobody is there")
        return Probed(build=BuildInfo(build="b"), host=HostInfo(), models=self.models)

    def asker(self, model: ModelInfo) -> Asker:
        return self

    def is_busy(self) -> bool:
        self.busy_polls -= 1
        return self.busy_polls >= 0

    def telemetry(self, model: ModelInfo) -> Telemetry:
        return Telemetry(vram_used_mb=3)

    def load(self, model: ModelInfo) -> float:
        return 2.0

    def unload(self, model: ModelInfo) -> float:
        return 1.0

    def ask(self, model: str, prompt: str, max_tokens: int) -> Answer:
        self.asked += 1
        if self.fails and (reason := self.fails.pop(0)):
            raise SampleFailedError(reason)
        return Answer(num_pieces=2, first_s=0.1, last_s=1.1, total_s=1.2)


@dataclass
class Kit:
    """A sweep whose clock is its own sleeping."""

    kept: list[BenchRun] = field(default_factory=list)
    done: dict[tuple[str, str], int] = field(default_factory=dict)
    slept_s: float = 0.0

    def samples_count(self, target: str, build: str) -> Mapping[tuple[str, str], int]:
        assert (target, build) == ("t", "b") or not self.done
        return self.done

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds

    def run(
        self, targets: dict[str, FakeTarget], is_beside_load: bool = False, **changes: object
    ) -> SweepResult:
        columns = {"scenarios": ["chat:128"], "samples_per_version": 2, **changes}
        open_target: Callable[[TargetSpec, float], FakeTarget] = lambda spec, _timeout_s: targets[  # noqa: E731
            spec.row.name
        ]
        sweep = Sweep(
            plan=SweepPlan(**columns),
            is_beside_load=is_beside_load,
            samples_count=self.samples_count,
            keep=self.kept.append,
            open_target=open_target,
            report=lambda _text: None,
            sleep=self.sleep,
            clock=lambda: self.slept_s,
        )
        rows = [BenchTarget(name=name, kind="openai", endpoint="http://x") for name in targets]
        return sweep.run([TargetSpec(row=row) for row in rows])


def test_a_sweep_waits_while_others_are_served_and_between_samples() -> None:
    kit, target = Kit(), FakeTarget(busy_polls=3)
    result = kit.run({"t": target})
    assert (result.num_ok, target.asked) == (2, 3)
    assert kit.slept_s >= 3
    kept = kit.kept[0]
    assert (kept.model_id, kept.build, kept.vram_used_mb) == ("m", "b", 3)
    paused = Kit()
    paused.run({"t": FakeTarget()}, iteration_pause_s=7.0)
    assert paused.slept_s == 21.0


def test_a_target_that_is_busy_or_away_loses_its_turn_alone() -> None:
    busy, idle = FakeTarget(busy_polls=10_000), FakeTarget()
    result = Kit().run({"busy": busy, "away": FakeTarget(is_away=True), "idle": idle})
    assert (busy.asked, idle.asked, result.num_ok) == (0, 3, 2)
    assert [reason.partition(" (")[0] for reason in result.left_out] == [
        "busy: it is busy with others' requests",
        "away: nobody is there",
    ]
    assert Kit().run({"t": busy}, is_beside_load=True).num_ok == 2, "where that is asked"


@each_case(("num_done", "num_ok"), [(0, 5), (3, 2), (5, 0), (9, 0)])
def test_a_cell_is_measured_until_it_has_its_samples(num_done: int, num_ok: int) -> None:
    kit, target = Kit(done={("m", "chat:128"): num_done}), FakeTarget()
    result = kit.run({"t": target}, samples_per_version=5)
    assert (result.num_ok, result.num_cells_done) == (num_ok, not num_ok)
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
    kit, target = Kit(), FakeTarget(fails=list(fails))
    result = kit.run({"t": target})
    assert (result.num_ok, result.num_failed, target.asked) == (num_ok, num_failed, num_asked)
    assert [kept.error for kept in kit.kept] == kept_errors
    assert all(kept.ok == (not kept.error) for kept in kit.kept)


def test_loading_is_measured_without_a_warm_up() -> None:
    kit = Kit()
    kit.run({"t": FakeTarget()}, scenarios=["load"])
    sample = kit.kept[0]
    assert len(kit.kept) == 2
    assert (sample.swap_unload_ms, sample.swap_load_ms) == (1000, 2000)


def test_a_neuron_of_this_fleet_is_asked_in_this_process_and_reports_a_refusal(db: None) -> None:
    door = LocalDoor("nobody")
    with pytest.raises(TargetUnreachableError, match=r"nobody.* has reported yet"):
        door.get("version")
    with pytest.raises(SampleFailedError, match=r"nobody.* has reported yet"):
        door.post("models/unload", {"model_id": "m"})


IDS = (*DEFAULT_SCENARIOS, "prefill:512", "concurrency:8", "load")


def test_an_id_is_read_as_it_is_written() -> None:
    found = [parse_scenario(text) for text in IDS]
    assert [scenario.id for scenario in found] == list(IDS)
    assert {scenario.kind for scenario in found} == set(ScenarioKind)
    twice = parse_scenarios(["load", "chat:8", "load"])
    assert [scenario.id for scenario in twice] == ["load", "chat:8"]


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


@each_case(
    ("text", "capabilities", "context_tokens", "is_measured"),
    [
        ("chat:128", {"chat", "completions"}, None, True),
        ("chat:128", set(), None, True),
        ("chat:128", {"embeddings"}, None, False),
        ("chat:128", {"embeddings", "chat"}, None, True),
        ("load", {"embeddings"}, None, True),
        ("chat:4096", set(), 4352, True),
        ("prefill:4097", set(), 4352, False),
        ("concurrency:1000", set(), 4352, True),
    ],
)
def test_a_model_is_measured_in_what_it_can_and_what_fits_it(
    text: str, capabilities: set[str], context_tokens: int | None, is_measured: bool
) -> None:
    model = ModelInfo(id="m", capabilities=frozenset(capabilities), context_tokens=context_tokens)
    assert fits(parse_scenario(text), model, max_tokens=256) is is_measured


def test_models_are_not_swapped_more_than_needed_and_unloading_comes_last() -> None:
    kit, target = Kit(), FakeTarget(models=(ModelInfo(id="a"), ModelInfo(id="b")))
    kit.run({"t": target}, samples_per_version=1, scenarios=["load", "chat:9", "chat:8"])
    assert [(run.model_id, run.scenario_id) for run in kit.kept] == [
        (model, scenario) for model in "ab" for scenario in ("chat:9", "chat:8", "load")
    ]
