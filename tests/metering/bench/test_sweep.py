"""What a sweep does with targets that are busy, away, or fail: no process, no socket, no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from metering.bench.answers import Answer
from metering.bench.client import Asker
from metering.bench.errors import SampleFailedError, TargetUnreachableError
from metering.bench.probing import BuildInfo, HostInfo, ModelInfo, Probed, Telemetry
from metering.bench.scenarios import CellKey, SweepSettings, TargetSpec, parse_scenario
from metering.bench.sweep import Kept, Sweep, SweepResult
from metering.bench.targets import LocalDoor


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

    kept: list[Kept] = field(default_factory=list)
    done: dict[CellKey, int] = field(default_factory=dict)
    slept_s: float = 0.0

    def num_done(self, target: str, build: str) -> Mapping[CellKey, int]:
        return self.done

    def keep(self, kept: Kept) -> None:
        self.kept.append(kept)

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds

    def run(self, targets: dict[str, FakeTarget], **changes: object) -> SweepResult:
        values: dict[str, object] = {
            "scenarios": (parse_scenario("chat:128"),),
            "samples_per_build": 2,
            "yields_for_s": 10.0,
            **changes,
        }
        open_target: Callable[[TargetSpec], FakeTarget] = lambda spec: targets[spec.name]  # noqa: E731
        sweep = Sweep(
            settings=SweepSettings(**values),  # type: ignore[arg-type]
            store=self,
            open_target=open_target,
            report=lambda _text: None,
            sleep=self.sleep,
            clock=lambda: self.slept_s,
        )
        specs = [TargetSpec(name=name, kind="openai", endpoint="http://x") for name in targets]
        return sweep.run(specs)


def test_a_sweep_waits_while_others_are_served() -> None:
    kit, target = Kit(), FakeTarget(busy_polls=3)
    result = kit.run({"t": target})
    assert (result.num_ok, target.asked) == (2, 3)
    assert kit.slept_s >= 3


def test_a_target_that_stays_busy_loses_its_turn_alone() -> None:
    kit, busy, idle = Kit(), FakeTarget(busy_polls=10_000), FakeTarget()
    result = kit.run({"busy": busy, "idle": idle})
    assert (busy.asked, idle.asked) == (0, 3)
    assert [reason.partition(" (")[0] for reason in result.left_out] == [
        "busy: it is busy with others' requests"
    ]


def test_it_is_measured_beside_load_where_that_is_asked() -> None:
    target = FakeTarget(busy_polls=10_000)
    assert Kit().run({"t": target}, is_beside_load=True).num_ok == 2


def test_a_target_that_is_away_stops_nothing() -> None:
    result = Kit().run({"away": FakeTarget(is_away=True), "t": FakeTarget()})
    assert (result.num_ok, result.left_out) == (2, ["away: nobody is there"])


def test_only_what_is_missing_is_measured() -> None:
    kit, target = Kit(), FakeTarget()
    kit.done[("t", "b", "m", "chat:128")] = 1
    assert kit.run({"t": target}).num_ok == 1
    kit.done[("t", "b", "m", "chat:128")] = 2
    result = kit.run({"t": target})
    assert (result.num_ok, result.num_cells_done, target.asked) == (0, 1, 2)


def test_one_failure_is_tried_again_and_two_end_the_cell() -> None:
    kit, target = Kit(), FakeTarget(fails=["", "no", ""])
    assert kit.run({"t": target}).num_failed == 1
    assert [kept.error for kept in kit.kept] == ["no", "", ""]
    kit, target = Kit(), FakeTarget(fails=["", "no", "no", "no"])
    result = kit.run({"t": target})
    assert (result.num_ok, result.num_failed, target.asked) == (0, 2, 3)


def test_a_warm_up_that_fails_is_kept_and_ends_the_cell() -> None:
    kit, target = Kit(), FakeTarget(fails=["no"])
    result = kit.run({"t": target})
    assert (result.num_failed, target.asked) == (1, 1)
    assert kit.kept[0].sample is None


def test_loading_is_measured_without_a_warm_up() -> None:
    kit = Kit()
    kit.run({"t": FakeTarget()}, scenarios=(parse_scenario("load"),))
    sample = kit.kept[0].sample
    assert sample is not None and len(kit.kept) == 2
    assert (sample.swap_unload_ms, sample.swap_load_ms) == (1000, 2000)


def test_between_samples_there_is_a_pause() -> None:
    kit = Kit()
    kit.run({"t": FakeTarget()}, iteration_pause_s=7.0)
    assert kit.slept_s == 21.0


def test_each_sample_is_stamped() -> None:
    kit = Kit()
    kit.run({"t": FakeTarget()})
    kept = kit.kept[0]
    assert (kept.model.id, kept.probed.build.build, kept.telemetry.vram_used_mb) == ("m", "b", 3)


def test_a_neuron_of_this_fleet_is_asked_in_this_process_and_reports_a_refusal(db: None) -> None:
    door = LocalDoor("nobody")
    with pytest.raises(TargetUnreachableError, match=r"nobody.* has reported yet"):
        door.get("version")
    with pytest.raises(SampleFailedError, match=r"nobody.* has reported yet"):
        door.post("models/unload", {"model_id": "m"})
