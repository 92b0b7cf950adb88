"""Checks and writes the plan and the targets."""

from __future__ import annotations

from django.db import transaction

from inference.settings.storage import OTHERS_KEY
from metering.actor import Actor
from metering.bench.errors import BenchValueError
from metering.bench.models import BenchTarget, SweepPlan, setting_names
from metering.bench.scenarios import parse_scenarios
from metering.services.audit import audit_entry_create

PLAN_ID = 1


def plan_find() -> SweepPlan:
    """The database's, or one with the defaults."""
    return SweepPlan.objects.filter(pk=PLAN_ID).first() or SweepPlan(pk=PLAN_ID)


def row_save(*, actor: Actor, row: BenchTarget | SweepPlan) -> None:
    """A new one, or a changed one. Raises ``BenchValueError``."""
    row_check(row)
    if isinstance(row, SweepPlan):
        row.pk = PLAN_ID
    with transaction.atomic():
        row.save()
        audit_entry_create(
            actor=actor,
            action=f"bench_{'plan' if isinstance(row, SweepPlan) else 'target'}.save",
            object_id=row.name if isinstance(row, BenchTarget) else str(PLAN_ID),
            detail={name: getattr(row, name) for name in setting_names(type(row))},
        )


def target_delete(*, actor: Actor, target: BenchTarget) -> None:
    """Deletes the target; its runs stay."""
    with transaction.atomic():
        audit_entry_create(actor=actor, action="bench_target.delete", object_id=target.name)
        target.delete()


def row_check(row: BenchTarget | SweepPlan) -> None:
    """Raises ``BenchValueError``."""
    for name in ("only_models", "scenarios", "gpus"):
        value = getattr(row, name, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise BenchValueError(name, f"{name} is to be a list of texts")
    parse_scenarios(row.scenarios)
    if isinstance(row, SweepPlan):
        return
    if row.kind not in row.Kind.values:
        raise BenchValueError("kind", f"{row.kind!r} is none of {', '.join(row.Kind)}")
    if not row.endpoint.startswith(("http://", "https://")):
        raise BenchValueError("endpoint", f"{row.endpoint!r} is not like http://gpu-box:8080")
    if row.api_key_env and not OTHERS_KEY.fullmatch(row.api_key_env):
        raise BenchValueError(
            "api_key_env",
            f"{row.api_key_env!r} is no name of a variable, or a secret of this server, which "
            "no target is sent",
        )
