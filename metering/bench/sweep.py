"""A sweep: measures every incomplete cell of every target, one sample after the other. An offline
or busy target is skipped."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from django.db.models import Count
from django.utils import timezone

from fleet.models import Neuron
from helexa_site.management.base import server_and_key
from inference.settings.gateway import API_KEY
from inference.supervised_threads import SupervisedPool
from inference.version import VERSION, this_build
from metering.bench import services
from metering.bench.importing import read_bench_toml, text_of
from metering.bench.measures import (
    Scenario,
    ScenarioKind,
    chat_prompt,
    median,
    parse_scenarios,
    percentile,
)
from metering.bench.models import BenchRun, BenchTarget, SweepPlan
from metering.bench.targets import Ask, Columns, ModelInfo, NeuronTarget, Target
from metering.errors import BenchError, BenchValueError, TargetError

YIELDS_FOR_S = 300.0
"""A target that stays busy for longer is left out."""
BUSY_POLL_S = 1.0
MAX_FAILURES_IN_A_ROW = 2
"""A cell is abandoned after so many: a third most likely fails too."""


def fits(scenario: Scenario, model: ModelInfo, *, max_tokens: int) -> bool:
    """A property that the model does not report is no reason against."""
    if scenario.kind is ScenarioKind.LOAD:
        return True
    chats = model.capabilities & {"chat", "completions"}
    if model.capabilities & {"embeddings", "embedding"} and not chats:
        return False
    tokens, most = scenario.prompt_tokens, model.context_tokens
    return tokens is None or most is None or tokens + max_tokens <= most


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    target: Target
    build: Columns
    model: ModelInfo
    ask: Ask
    scenario: Scenario


@dataclass(slots=True, kw_only=True)
class Sweep:
    plan: SweepPlan
    targets: Sequence[Target]
    report: Callable[[str], object]
    is_beside_load: bool = False
    checkpoint: Callable[[], object] = lambda: None
    """Called before each sample, and while a target is busy; an exception ends the sweep, unless it
    is a ``BenchError``."""
    sleep: Callable[[float], object] = time.sleep
    clock: Callable[[], float] = time.monotonic
    num_planned: int = 0
    """Samples of the targets reached so far."""
    num_ok: int = 0
    num_failed: int = 0
    num_cells_done: int = 0
    """Cells that were complete before."""
    left_out: list[str] = field(default_factory=list)

    @property
    def has_nothing(self) -> bool:
        return self.num_ok == 0 and bool(self.num_failed or self.left_out)

    def run(self) -> None:
        for target in self.targets:
            try:
                self._measure_target(target)
            except BenchError as error:
                self._leave_out(target, str(error))
        self.report(
            f"{self.num_ok} measured, {self.num_failed} failed, "
            f"{self.num_cells_done} had their samples"
        )

    def _leave_out(self, target: Target, reason: str) -> None:
        self.left_out.append(f"{target.row.name}: {reason}")
        self.report(f"left out: {target.row.name}: {reason}")

    def _measure_target(self, target: Target) -> None:
        build, models = target.probe()
        only_models = target.row.only_models
        loaded = {model.id: model for model in models}
        for name in only_models:
            if name not in loaded:
                self._leave_out(target, f"{name} is not loaded")
        num_done = _samples_count(target.row.name, build["build"])
        work = [
            (model, self._missing(target, model, num_done))
            for model in loaded.values()
            if not only_models or model.id in only_models
        ]
        num_missing = sum(sum(missing.values()) for _, missing in work)
        self.num_planned += num_missing
        self.report(f"{num_missing} samples to take")
        for model, missing in work:
            if not missing:
                continue
            try:
                ask = target.asker(model)
            except TargetError as error:
                self._leave_out(target, str(error))
                continue
            for scenario, num_samples in missing.items():
                cell = _Cell(target=target, build=build, model=model, ask=ask, scenario=scenario)
                self._measure_cell(cell, num_samples)

    def _missing(
        self, target: Target, model: ModelInfo, num_done: Mapping[tuple[str, str], int]
    ) -> dict[Scenario, int]:
        missing = {}
        for scenario in parse_scenarios(target.row.scenarios or self.plan.scenarios):
            if fits(scenario, model, max_tokens=self.plan.max_tokens):
                num = self.plan.samples_per_version - num_done.get((model.id, scenario.id), 0)
                if num > 0:
                    missing[scenario] = num
                else:
                    self.num_cells_done += 1
        return dict(sorted(missing.items(), key=lambda item: item[0].kind is ScenarioKind.LOAD))

    def _measure_cell(self, cell: _Cell, num_samples: int) -> None:
        """The first request is not measured, unless it fails: the server may have restarted."""
        if cell.scenario.kind is not ScenarioKind.LOAD and not (warm_up := self._take(cell)).ok:
            self._keep(cell, warm_up)
            return
        num_ok = num_failed_in_a_row = 0
        while num_ok < num_samples and num_failed_in_a_row < MAX_FAILURES_IN_A_ROW:
            run = self._take(cell)
            self._keep(cell, run)
            num_ok += run.ok
            num_failed_in_a_row = 0 if run.ok else num_failed_in_a_row + 1

    def _take(self, cell: _Cell) -> BenchRun:
        self._wait_while_busy(cell.target)
        try:
            run = _measured(cell, self.plan)
            run.ok = True
        except TargetError as error:
            run = BenchRun(ok=False, error=str(error))
        self.sleep(self.plan.iteration_pause_s)
        return run

    def _wait_while_busy(self, target: Target) -> None:
        self.checkpoint()
        deadline_s = self.clock() + YIELDS_FOR_S
        while not self.is_beside_load and target.is_busy():
            self.checkpoint()
            if self.clock() >= deadline_s:
                raise BenchError("it is busy with others' requests (--beside-load measures anyway)")
            self.sleep(BUSY_POLL_S)

    def _keep(self, cell: _Cell, run: BenchRun) -> None:
        row, model, scenario = cell.target.row, cell.model, cell.scenario
        columns = {
            "ts": timezone.now(),
            "target_name": row.name,
            "target_kind": row.kind,
            "endpoint": row.endpoint,
            **cell.build,
            "hostname": cell.build.get("hostname") or row.hostname,
            **cell.target.telemetry(model),
            "bench_version": VERSION,
            "bench_sha": this_build().git_sha_long,
            "model_id": model.id,
            "harness": model.harness,
            "capabilities": sorted(model.capabilities),
            "devices": model.devices,
            "settings": {"temperature": 0, **model.settings},
            "scenario_id": scenario.id,
            "prompt_size_approx": scenario.prompt_tokens,
            "concurrency": scenario.concurrency,
        }
        for name, value in columns.items():
            setattr(run, name, value)
        run.save()
        self.num_ok += run.ok
        self.num_failed += not run.ok
        self.report(f"{run}: {_values_text(run) if run.ok else run.error}")


def _samples_count(target: str, build: str) -> dict[tuple[str, str], int]:
    runs = BenchRun.objects.filter(ok=True, target_name=target, build=build).order_by()
    rows = runs.values_list("model_id", "scenario_id").annotate(num=Count("pk"))
    return {(model, scenario): num for model, scenario, num in rows}


def _values_text(run: BenchRun) -> str:
    values = {
        "s to the first token": run.ttft_s,
        "tok/s prefill": run.prefill_tps,
        "tok/s decode": run.decode_tps,
        "ms to load": run.swap_load_ms,
        "s in all": run.total_s,
    }
    parts = [f"{value:.4g} {unit}" for unit, value in values.items() if value is not None]
    return ", ".join(parts) or "done"


def _measured(cell: _Cell, plan: SweepPlan) -> BenchRun:
    match cell.scenario.kind:
        case ScenarioKind.CHAT:
            salt = "warm" if cell.scenario.is_warm else _new_salt()
            return cell.ask(chat_prompt(cell.scenario.size, salt), plan.max_tokens)
        case ScenarioKind.PREFILL:
            return cell.ask(chat_prompt(cell.scenario.size, _new_salt()), 1)
        case ScenarioKind.CONCURRENCY:
            return _concurrency(cell, plan)
        case ScenarioKind.LOAD:
            started_s = time.perf_counter()
            cell.target.unload(cell.model)
            unloaded_s = time.perf_counter()
            cell.target.load(cell.model)
            return BenchRun(
                swap_unload_ms=(unloaded_s - started_s) * 1000,
                swap_load_ms=(time.perf_counter() - unloaded_s) * 1000,
            )


def _new_salt() -> str:
    return secrets.token_hex(8)


def _concurrency(cell: _Cell, plan: SweepPlan) -> BenchRun:
    num_tokens, max_tokens = plan.concurrency_prompt_tokens, plan.max_tokens
    texts = [chat_prompt(num_tokens, _new_salt()) for _ in range(cell.scenario.size)]

    def ask(text: str) -> BenchRun | None:
        """``None``: the server had no room, which is a result, and no fault."""
        try:
            return cell.ask(text, max_tokens)
        except TargetError as error:
            if error.status in (429, 503):
                return None
            raise

    started_s = time.perf_counter()
    with SupervisedPool(len(texts)) as threads:
        answers = list(threads.map(ask, texts))
    window_s = time.perf_counter() - started_s
    served = [run for run in answers if run is not None]
    ttfts = [run.ttft_s for run in served if run.ttft_s is not None]
    tokens = sum(run.completion_tokens or 0 for run in served)
    return BenchRun(
        max_tokens=max_tokens,
        prompt_tokens_actual=served[0].prompt_tokens_actual if served else None,
        completion_tokens=tokens,
        ttft_s=median(ttfts),
        ttft_p95_s=percentile(ttfts, 95),
        decode_tps=tokens / window_s if served else None,
        total_s=window_s,
        queue_wait_ms=median(
            [run.queue_wait_ms for run in served if run.queue_wait_ms is not None]
        ),
        rejected=len(answers) - len(served),
        detail={"ttft_s": ttfts},
    )


Options = Mapping[str, Any]
"""By destinations of the command's arguments. ``config``: a file instead of the database. With an
``endpoint`` only this one is measured."""


def sweep_of(options: Options, report: Callable[[str], object]) -> Sweep:
    """Raises ``BenchError``."""
    config, models, scenarios = (options.get(name) for name in ("config", "models", "scenarios"))
    toml = read_bench_toml(text_of(config)) if config else None
    plan = _plan(options, toml.plan if toml else {})
    rows = [BenchTarget(**columns) for columns in toml.targets] if toml else None
    found = _targets(options, rows, plan.request_timeout_s)
    targets = {target.row.name: target for target in found}
    names = options.get("targets") or targets
    for name in names:
        if name not in targets:
            known = ", ".join(targets) or "there is none"
            raise BenchValueError("target", f"{name!r} is no target: {known}")
    chosen = [targets[name] for name in dict.fromkeys(names)]
    if not chosen:
        raise BenchValueError("target", "there is nothing to measure: no neuron, no target")
    for target in chosen:
        if models:
            target.row.only_models = list(models)
        if scenarios:
            target.row.scenarios = []
    is_beside_load = options.get("is_beside_load", False)
    return Sweep(plan=plan, targets=chosen, is_beside_load=is_beside_load, report=report)


def _plan(options: Options, columns: Mapping[str, Any]) -> SweepPlan:
    numbers = {
        "samples_per_version": options.get("samples"),
        "max_tokens": options.get("max_tokens"),
        "iteration_pause_s": options.get("pause_s"),
        "request_timeout_s": options.get("timeout_s"),
        "scenarios": options.get("scenarios") or None,
    }
    given = {name: value for name, value in numbers.items() if value is not None}
    return services.row_fill(services.plan_find(), {**columns, **given}, "the sweep")


def _targets(
    options: Options, rows: Iterable[BenchTarget] | None, timeout_s: float
) -> Iterator[Target]:
    if endpoint := options.get("endpoint"):
        row = BenchTarget(
            name=options["name"] or endpoint,
            kind=options["kind"],
            endpoint=endpoint,
            build=options["build"],
        )
        yield _target(row, options["key"] or API_KEY.read(os.environ), timeout_s)
        return
    if options.get("has_fleet", True):
        # Through the database's views; their models answer at ``url``.
        url, key = server_and_key(options.get("url"), options.get("key"), settings.CONFIG.data_dir)
        for neuron in Neuron.objects.exclude(status="away").order_by("name"):
            row = BenchTarget(name=neuron.name, kind="neuron", endpoint=url)
            yield NeuronTarget(row, key, timeout_s=timeout_s, is_local=True)
    for row in BenchTarget.objects.all() if rows is None else rows:
        if row.enabled:
            yield _target(row, os.environ.get(row.api_key_env), timeout_s)


def _target(row: BenchTarget, api_key: str | None, timeout_s: float) -> Target:
    services.row_check(row)
    kind = NeuronTarget if row.kind == "neuron" else Target
    return kind(row, api_key, timeout_s=timeout_s)
