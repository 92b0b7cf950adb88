"""Writes to the bench's tables, and the reads of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from django.db import transaction
from django.db.models import Count
from django.utils import timezone

from inference.build import this_build
from inference.settings.storage import OTHERS_KEY
from inference.version import VERSION
from metering.actor import Actor
from metering.bench.errors import BenchValueError
from metering.bench.models import BenchRun, BenchTarget, SweepPlan
from metering.bench.scenarios import KINDS, CellKey, SweepSettings, TargetSpec, parse_scenarios
from metering.bench.sweep import Kept
from metering.services.audit import audit_entry_create

PLAN_ID = 1
TARGET_FIELDS = (
    "kind",
    "endpoint",
    "label",
    "enabled",
    "only_models",
    "scenarios",
    "api_key_env",
    "build",
    "hostname",
    "gpus",
)
PLAN_FIELDS = (
    "samples_per_version",
    "iteration_pause_s",
    "request_timeout_s",
    "sweep_interval_s",
    "max_tokens",
    "concurrency_prompt_tokens",
    "scenarios",
)


class RunStore:
    """A sweep's access to the database."""

    def num_done(self, target: str, build: str) -> Mapping[CellKey, int]:
        rows = (
            BenchRun.objects.filter(ok=True, target_name=target, build=build)
            .order_by()
            .values_list("model_id", "scenario_id")
            .annotate(num=Count("pk"))
        )
        return {(target, build, model, scenario): num for model, scenario, num in rows}

    def keep(self, kept: Kept) -> None:
        run_of(kept).save(force_insert=True)


def run_of(kept: Kept) -> BenchRun:
    build, host, scenario = kept.probed.build, kept.probed.host, kept.scenario
    run = BenchRun(
        ts=timezone.now(),
        target_name=kept.spec.name,
        target_kind=kept.spec.kind,
        endpoint=kept.spec.endpoint,
        hostname=host.hostname or kept.spec.hostname,
        driver_version=host.driver_version,
        cuda_version=host.cuda_version,
        gpus=list(host.gpus),
        build=build.build,
        git_sha=build.git_sha,
        git_sha_long=build.git_sha_long,
        git_dirty=build.git_dirty,
        package_version=build.package_version,
        build_timestamp=build.built_at,
        features=list(build.features),
        bench_version=VERSION,
        bench_sha=this_build().git_sha_long,
        model_id=kept.model.id,
        harness=kept.model.harness,
        capabilities=sorted(kept.model.capabilities),
        devices=list(kept.model.devices),
        settings={"temperature": 0, **kept.model.settings},
        scenario_id=scenario.id,
        prompt_size_approx=scenario.prompt_tokens,
        concurrency=scenario.concurrency,
        ok=kept.sample is not None,
        error=kept.error,
        **asdict(kept.telemetry),
    )
    if kept.sample is not None:
        measured = asdict(kept.sample)
        if measured.pop("is_timed_by_server"):
            run.timing = BenchRun.Timing.SERVER
        for name, value in measured.items():
            setattr(run, name, value)
    return run


def runs_import(*, actor: Actor, runs: Sequence[BenchRun], source: str) -> int:
    """Adds the rows of a file and returns how many were new. A row with the moment, cell and
    numbers of an existing one is skipped."""
    with transaction.atomic():
        known = set(
            map(
                _identity,
                BenchRun.objects.filter(
                    origin__in={run.origin for run in runs},
                    target_name__in={run.target_name for run in runs},
                ),
            )
        )
        fresh = [run for run in runs if _identity(run) not in known]
        BenchRun.objects.bulk_create(fresh, batch_size=200)
        audit_entry_create(
            actor=actor,
            action="bench_run.import",
            object_id=source,
            detail={"added": len(fresh), "known": len(runs) - len(fresh)},
        )
    return len(fresh)


def target_save(*, actor: Actor, target: BenchTarget) -> BenchTarget:
    """A new target, or a changed one. Raises ``BenchValueError``."""
    target_check(target)
    with transaction.atomic():
        target.save()
        detail = {name: getattr(target, name) for name in TARGET_FIELDS}
        audit_entry_create(
            actor=actor, action="bench_target.save", object_id=target.name, detail=detail
        )
    return target


def target_delete(*, actor: Actor, target: BenchTarget) -> None:
    """Deletes the target; its runs stay."""
    with transaction.atomic():
        audit_entry_create(actor=actor, action="bench_target.delete", object_id=target.name)
        target.delete()


def target_check(target: BenchTarget) -> None:
    """Raises ``BenchValueError``."""
    if target.kind not in KINDS:
        raise BenchValueError("kind", f"{target.kind!r} is none of {', '.join(KINDS)}")
    if not target.endpoint.startswith(("http://", "https://")):
        raise BenchValueError("endpoint", f"{target.endpoint!r} is not like http://gpu-box:8080")
    for name in ("only_models", "scenarios", "gpus"):
        _ensure_texts(name, getattr(target, name))
    parse_scenarios(target.scenarios)
    if target.api_key_env and not OTHERS_KEY.fullmatch(target.api_key_env):
        raise BenchValueError(
            "api_key_env",
            f"{target.api_key_env!r} is no name of a variable, or a secret of this server, which "
            "no target is sent",
        )


def plan_find() -> SweepPlan:
    """The database's, or one with the defaults."""
    return SweepPlan.objects.filter(pk=PLAN_ID).first() or SweepPlan(pk=PLAN_ID)


def plan_save(*, actor: Actor, plan: SweepPlan) -> SweepPlan:
    """Raises ``BenchValueError``."""
    settings_of(plan)
    plan.pk = PLAN_ID
    with transaction.atomic():
        plan.save()
        detail = {name: getattr(plan, name) for name in PLAN_FIELDS}
        audit_entry_create(
            actor=actor, action="bench_plan.save", object_id=str(PLAN_ID), detail=detail
        )
    return plan


def settings_of(plan: SweepPlan) -> SweepSettings:
    """Raises ``BenchValueError``."""
    _ensure_texts("scenarios", plan.scenarios)
    return SweepSettings(
        samples_per_build=plan.samples_per_version,
        iteration_pause_s=plan.iteration_pause_s,
        request_timeout_s=plan.request_timeout_s,
        sweep_interval_s=plan.sweep_interval_s,
        max_tokens=plan.max_tokens,
        concurrency_prompt_tokens=plan.concurrency_prompt_tokens,
        scenarios=tuple(parse_scenarios(plan.scenarios)),
    )


def spec_of(target: BenchTarget, environment: Mapping[str, str]) -> TargetSpec:
    """Raises ``BenchValueError``."""
    target_check(target)
    return TargetSpec(
        name=target.name,
        kind=target.kind,
        endpoint=target.endpoint,
        only_models=tuple(target.only_models),
        scenarios=tuple(parse_scenarios(target.scenarios)),
        build=target.build,
        hostname=target.hostname,
        gpus=tuple(target.gpus),
        api_key=environment.get(target.api_key_env) if target.api_key_env else None,
        key_variable=target.api_key_env,
    )


def _ensure_texts(name: str, value: Any) -> None:
    if not isinstance(value, Iterable) or not all(isinstance(one, str) for one in value):
        raise BenchValueError(name, f"{name} is to be a list of texts")
    if isinstance(value, str):
        raise BenchValueError(name, f"{name} is to be a list of texts")


def _identity(run: BenchRun) -> tuple[Any, ...]:
    return (
        run.origin,
        run.ts,
        run.target_name,
        run.build,
        run.model_id,
        run.scenario_id,
        run.ttft_s,
        run.decode_tps,
        run.prefill_tps,
        run.total_s,
        run.swap_load_ms,
        run.ok,
    )
