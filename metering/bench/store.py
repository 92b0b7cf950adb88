"""Writes to the bench's tables, and what a sweep reads of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.db.models import Count

from inference.settings.storage import OTHERS_KEY
from metering.actor import Actor
from metering.bench.errors import BenchValueError
from metering.bench.models import BenchRun, BenchTarget, SweepPlan
from metering.bench.scenarios import parse_scenarios
from metering.services.audit import audit_entry_create

PLAN_ID = 1
TARGET_FIELDS = tuple(
    field.name for field in BenchTarget._meta.fields if field.name not in ("id", "name")
)
PLAN_FIELDS = tuple(
    field.name for field in SweepPlan._meta.fields if field.name not in ("id", "probes")
)
IDENTITY = (
    *("origin", "ts", "target_name", "build", "model_id", "scenario_id", "ok"),
    *("ttft_s", "decode_tps", "prefill_tps", "total_s", "swap_load_ms"),
)
"""Columns by which an imported row is known."""


def samples_count(target: str, build: str) -> dict[tuple[str, str], int]:
    """Successful samples by model and scenario id."""
    rows = (
        BenchRun.objects.filter(ok=True, target_name=target, build=build)
        .order_by()
        .values_list("model_id", "scenario_id")
        .annotate(num=Count("pk"))
    )
    return {(model, scenario): num for model, scenario, num in rows}


def runs_import(*, actor: Actor, runs: Sequence[BenchRun], source: str) -> int:
    """Adds the rows of a file and returns how many were new. A row with the moment, cell and
    numbers of an existing one is skipped."""
    with transaction.atomic():
        stored = BenchRun.objects.filter(
            origin__in={run.origin for run in runs},
            target_name__in={run.target_name for run in runs},
        )
        known = set(stored.values_list(*IDENTITY))
        fresh = [run for run in runs if tuple(getattr(run, name) for name in IDENTITY) not in known]
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
    if target.kind not in target.Kind.values:
        raise BenchValueError("kind", f"{target.kind!r} is none of {', '.join(target.Kind)}")
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
    plan_check(plan)
    plan.pk = PLAN_ID
    with transaction.atomic():
        plan.save()
        detail = {name: getattr(plan, name) for name in PLAN_FIELDS}
        audit_entry_create(
            actor=actor, action="bench_plan.save", object_id=str(PLAN_ID), detail=detail
        )
    return plan


def plan_check(plan: SweepPlan) -> None:
    """Raises ``BenchValueError``."""
    _ensure_texts("scenarios", plan.scenarios)
    parse_scenarios(plan.scenarios)


def _ensure_texts(name: str, value: Any) -> None:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise BenchValueError(name, f"{name} is to be a list of texts")
