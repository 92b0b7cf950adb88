"""A sweep: every target, every incomplete cell, one sample after the other.

    probe ─▶ cells ─▶ for each with samples missing: wait while busy ─▶ warm up ─▶ sample ─▶ keep

An offline or busy target is skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from django.utils import timezone

from inference.build import this_build
from inference.version import VERSION
from metering.bench import store
from metering.bench.errors import BenchError, SampleFailedError, TargetUnreachableError
from metering.bench.measuring import Measuring, measure
from metering.bench.models import BenchRun, SweepPlan
from metering.bench.probing import ModelInfo
from metering.bench.scenarios import Scenario, fits, parse_scenarios
from metering.bench.targets import Target, TargetSpec, open_target

YIELDS_FOR_S = 300.0
"""A target that stays busy for longer is left out."""
BUSY_POLL_S = 1.0
MAX_FAILURES_IN_A_ROW = 2
"""A cell is abandoned after so many: a third most likely fails too."""


@dataclass(slots=True, kw_only=True)
class SweepResult:
    num_ok: int = 0
    num_failed: int = 0
    num_cells_done: int = 0
    """Cells that were complete before."""
    left_out: list[str] = field(default_factory=list)
    """Targets and models that were not measured, with the reason."""

    @property
    def has_nothing(self) -> bool:
        """Whether what there was to measure gave no sample."""
        return self.num_ok == 0 and bool(self.num_failed or self.left_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    plan: SweepPlan
    report: Callable[[str], object]
    is_beside_load: bool = False
    """Measures also while others use the target."""
    open_target: Callable[[TargetSpec, float], Target] = open_target
    samples_count: Callable[[str, str], Mapping[tuple[str, str], int]] = store.samples_count
    keep: Callable[[BenchRun], object] = BenchRun.save
    expect: Callable[[int], object] = lambda _num_samples: None
    """Called for each target with its number of samples."""
    ensure_wanted: Callable[[], object] = lambda: None
    """Called before each sample, and while a target is busy; an exception ends the sweep, unless it
    is a ``BenchError``."""
    sleep: Callable[[float], object] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def run(self, specs: Sequence[TargetSpec]) -> SweepResult:
        result = SweepResult()
        for spec in specs:
            target_sweep = _TargetSweep(self, spec, result)
            try:
                target_sweep.run()
            except BenchError as error:
                target_sweep.leave_out(str(error))
        return result


class _TargetSweep:
    def __init__(self, sweep: Sweep, spec: TargetSpec, result: SweepResult) -> None:
        self._sweep = sweep
        self._plan = sweep.plan
        self._spec = spec
        self._row = spec.row
        self._result = result

    def leave_out(self, reason: str) -> None:
        reason = f"{self._row.name}: {reason}"
        self._result.left_out.append(reason)
        self._sweep.report(f"left out: {reason}")

    def run(self) -> None:
        """Raises ``BenchError``."""
        self._target = self._sweep.open_target(self._spec, self._plan.request_timeout_s)
        self._probed = self._target.probe()
        only_models = self._row.only_models
        models = {model.id: model for model in self._probed.models}
        for name in only_models:
            if name not in models:
                self.leave_out(f"{name} is not loaded")
        num_done = self._sweep.samples_count(self._row.name, self._probed.build.build)
        work: list[tuple[ModelInfo, dict[Scenario, int]]] = []
        for model in models.values():
            if not only_models or model.id in only_models:
                scenarios = self._scenarios(model)
                missing = {
                    scenario: num_samples
                    for scenario in scenarios
                    if (num_samples := self._missing(num_done, model, scenario)) > 0
                }
                self._result.num_cells_done += len(scenarios) - len(missing)
                work.append((model, missing))
        self._sweep.expect(sum(sum(missing.values()) for _, missing in work))
        for model, missing in work:
            if missing:
                self._measure_model(model, missing)

    def _scenarios(self, model: ModelInfo) -> list[Scenario]:
        """Those that fit the model; the ones that take it offline come last."""
        fitting = [
            scenario
            for scenario in parse_scenarios(self._row.scenarios or self._plan.scenarios)
            if fits(scenario, model, max_tokens=self._plan.max_tokens)
        ]
        return sorted(fitting, key=lambda scenario: scenario.takes_offline)

    def _missing(
        self, num_done: Mapping[tuple[str, str], int], model: ModelInfo, scenario: Scenario
    ) -> int:
        return self._plan.samples_per_version - num_done.get((model.id, scenario.id), 0)

    def _measure_model(self, model: ModelInfo, missing: Mapping[Scenario, int]) -> None:
        try:
            asker = self._target.asker(model)
        except TargetUnreachableError as error:
            self.leave_out(str(error))
            return
        for scenario, num_samples in missing.items():
            cell = Measuring(
                target=self._target, asker=asker, model=model, scenario=scenario, plan=self._plan
            )
            self._measure_cell(cell, num_samples)

    def _measure_cell(self, cell: Measuring, num_samples: int) -> None:
        """Each sweep's first request to a cell is not measured, unless it fails: the server may
        have restarted since the last one."""
        if not cell.scenario.takes_offline and not (warm_up := self._take(cell)).ok:
            self._keep(cell, warm_up)
            return
        num_ok = num_failed_in_a_row = 0
        while num_ok < num_samples and num_failed_in_a_row < MAX_FAILURES_IN_A_ROW:
            run = self._take(cell)
            self._keep(cell, run)
            num_ok += run.ok
            num_failed_in_a_row = 0 if run.ok else num_failed_in_a_row + 1

    def _take(self, cell: Measuring) -> BenchRun:
        self._wait_while_busy()
        try:
            run = measure(cell)
            run.ok = True
        except SampleFailedError as error:
            run = BenchRun(ok=False, error=str(error))
        self._sweep.sleep(self._plan.iteration_pause_s)
        return run

    def _keep(self, cell: Measuring, run: BenchRun) -> None:
        self._result.num_ok += run.ok
        self._result.num_failed += not run.ok
        build, host, model = self._probed.build, self._probed.host, cell.model
        words = (self._row.name, build.build, model.id, cell.scenario.id)
        self._sweep.report(f"{' '.join(words)}: {_values_text(run) if run.ok else run.error}")
        columns = {
            "ts": timezone.now(),
            "target_name": self._row.name,
            "target_kind": self._row.kind,
            "endpoint": self._row.endpoint,
            **asdict(build),
            **asdict(host),
            "hostname": host.hostname or self._row.hostname,
            **asdict(self._target.telemetry(model)),
            "bench_version": VERSION,
            "bench_sha": this_build().git_sha_long,
            "model_id": model.id,
            "harness": model.harness,
            "capabilities": sorted(model.capabilities),
            "devices": model.devices,
            "settings": {"temperature": 0, **model.settings},
            "scenario_id": cell.scenario.id,
            "prompt_size_approx": cell.scenario.prompt_tokens,
            "concurrency": cell.scenario.concurrency,
        }
        for name, value in columns.items():
            setattr(run, name, value)
        self._sweep.keep(run)

    def _wait_while_busy(self) -> None:
        """Raises ``BenchError``."""
        self._sweep.ensure_wanted()
        if self._sweep.is_beside_load:
            return
        deadline_s = self._sweep.clock() + YIELDS_FOR_S
        while self._target.is_busy():
            self._sweep.ensure_wanted()
            if self._sweep.clock() >= deadline_s:
                raise BenchError("it is busy with others' requests (--beside-load measures anyway)")
            self._sweep.sleep(BUSY_POLL_S)


def _values_text(run: BenchRun) -> str:
    parts = [
        f"{value:.4g} {unit}"
        for value, unit in (
            (run.ttft_s, "s to the first token,"),
            (run.prefill_tps, "tok/s prefill,"),
            (run.decode_tps, "tok/s decode,"),
            (run.swap_load_ms, "ms to load,"),
            (run.total_s, "s in all"),
        )
        if value is not None
    ]
    return " ".join(parts).rstrip(",") or "done"
