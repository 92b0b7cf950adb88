"""A sweep: every target, every incomplete cell, one sample after the other.

    probe ─▶ cells ─▶ work left ─▶ for each: wait while busy ─▶ warm up ─▶ sample ─▶ keep

An offline or busy target is skipped.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from metering.bench.client import Asker
from metering.bench.errors import BenchError, SampleFailedError, TargetUnreachableError
from metering.bench.measuring import Measuring, Sample, measure
from metering.bench.probing import ModelInfo, Probed, Telemetry
from metering.bench.scenarios import (
    Cell,
    CellKey,
    Scenario,
    SweepSettings,
    TargetSpec,
    Work,
    why_not,
    work_left,
)
from metering.bench.targets import Target

BUSY_POLL_S = 1.0
MAX_FAILURES_IN_A_ROW = 2
"""A cell is abandoned after so many: a third most likely fails too."""


class Store(Protocol):
    def num_done(self, target: str, build: str) -> Mapping[CellKey, int]: ...

    def keep(self, kept: Kept) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One sample with its metadata; ``sample`` is ``None`` where it failed."""

    spec: TargetSpec
    probed: Probed
    model: ModelInfo
    scenario: Scenario
    sample: Sample | None
    error: str
    telemetry: Telemetry


@dataclass(slots=True, kw_only=True)
class SweepResult:
    num_ok: int = 0
    num_failed: int = 0
    num_cells_done: int = 0
    """Cells that were complete before."""
    left_out: list[str] = field(default_factory=list)
    """Targets and models that were not measured, with the reason."""


class BusyError(BenchError):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    settings: SweepSettings
    store: Store
    open_target: Callable[[TargetSpec], Target]
    report: Callable[[str], object]
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
            try:
                _TargetSweep(self, spec, result).run()
            except BenchError as error:
                self._leave_out(result, f"{spec.name}: {error}")
        return result

    def _leave_out(self, result: SweepResult, reason: str) -> None:
        result.left_out.append(reason)
        self.report(f"left out: {reason}")


class _TargetSweep:
    def __init__(self, sweep: Sweep, spec: TargetSpec, result: SweepResult) -> None:
        self._sweep = sweep
        self._settings = sweep.settings
        self._spec = spec
        self._result = result
        self._target = sweep.open_target(spec)

    def run(self) -> None:
        """Raises ``BenchError``."""
        self._probed = self._target.probe()
        self._models = {model.id: model for model in self._probed.models}
        for name in self._spec.only_models:
            if name not in self._models:
                self._leave_out(f"{name} is not loaded")
        cells = list(self._cells())
        work = work_left(
            cells,
            self._sweep.store.num_done(self._spec.name, self._probed.build.build),
            samples_per_build=self._settings.samples_per_build,
        )
        self._result.num_cells_done += len(cells) - len(work)
        self._sweep.expect(sum(one.num_samples for one in work))
        askers: dict[str, Asker | None] = {}
        for one in work:
            model = one.cell.model
            if model not in askers:
                askers[model] = self._asker(self._models[model])
            if (asker := askers[model]) is not None:
                self._work(one, asker)

    def _leave_out(self, reason: str) -> None:
        self._sweep._leave_out(self._result, f"{self._spec.name}: {reason}")

    def _cells(self) -> list[Cell]:
        scenarios = self._spec.scenarios or self._settings.scenarios
        return [
            Cell(
                target=self._spec.name,
                build=self._probed.build.build,
                model=model.id,
                scenario=scenario,
            )
            for model in self._models.values()
            if not self._spec.only_models or model.id in self._spec.only_models
            for scenario in scenarios
            if not why_not(
                scenario,
                capabilities=model.capabilities,
                context_tokens=model.context_tokens,
                max_tokens=self._settings.max_tokens,
            )
        ]

    def _asker(self, model: ModelInfo) -> Asker | None:
        try:
            return self._target.asker(model)
        except TargetUnreachableError as error:
            self._leave_out(str(error))
            return None

    def _work(self, work: Work, asker: Asker) -> None:
        if not work.cell.scenario.takes_offline and not self._warm_up(work, asker):
            return
        num_ok = num_failed_in_a_row = 0
        while num_ok < work.num_samples and num_failed_in_a_row < MAX_FAILURES_IN_A_ROW:
            sample, error = self._take(work, asker)
            self._keep(work, sample, error)
            num_ok += sample is not None
            num_failed_in_a_row = 0 if sample is not None else num_failed_in_a_row + 1

    def _warm_up(self, work: Work, asker: Asker) -> bool:
        """Each sweep's first request to a cell is not measured: the server may have restarted since
        the last one. A failure is recorded."""
        sample, error = self._take(work, asker)
        if sample is None:
            self._keep(work, None, error)
        return sample is not None

    def _take(self, work: Work, asker: Asker) -> tuple[Sample | None, str]:
        self._wait_while_busy()
        measuring = Measuring(
            target=self._target,
            asker=asker,
            model=self._models[work.cell.model],
            scenario=work.cell.scenario,
            settings=self._settings,
            salt=secrets.token_hex(8),
        )
        try:
            return measure(measuring), ""
        except SampleFailedError as error:
            return None, str(error)
        finally:
            self._sweep.sleep(self._settings.iteration_pause_s)

    def _keep(self, work: Work, sample: Sample | None, error: str) -> None:
        model = self._models[work.cell.model]
        self._result.num_ok += sample is not None
        self._result.num_failed += sample is None
        self._sweep.report(
            f"{' '.join(work.cell.key)}: {_values_text(sample) if sample else error}"
        )
        self._sweep.store.keep(
            Kept(
                spec=self._spec,
                probed=self._probed,
                model=model,
                scenario=work.cell.scenario,
                sample=sample,
                error=error,
                telemetry=self._target.telemetry(model),
            )
        )

    def _wait_while_busy(self) -> None:
        """Raises ``BusyError``."""
        self._sweep.ensure_wanted()
        if self._settings.is_beside_load:
            return
        deadline_s = self._sweep.clock() + self._settings.yields_for_s
        while self._target.is_busy():
            self._sweep.ensure_wanted()
            if self._sweep.clock() >= deadline_s:
                raise BusyError("it is busy with others' requests (--beside-load measures anyway)")
            self._sweep.sleep(BUSY_POLL_S)


def _values_text(sample: Sample) -> str:
    parts = [
        f"{value:.4g} {unit}"
        for value, unit in (
            (sample.ttft_s, "s to the first token,"),
            (sample.prefill_tps, "tok/s prefill,"),
            (sample.decode_tps, "tok/s decode,"),
            (sample.swap_load_ms, "ms to load,"),
            (sample.total_s, "s in all"),
        )
        if value is not None
    ]
    return " ".join(parts).rstrip(",") or "done"
