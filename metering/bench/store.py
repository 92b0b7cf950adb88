"""Checks and writes the plan and the targets, and fills rows with what files have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from django.core.exceptions import ValidationError
from django.db import models, transaction

from metering.audit import Actor, audit_entry_create
from metering.bench.models import BenchTarget, SweepPlan, setting_names
from metering.errors import BenchError, BenchValueError

PLAN_ID = 1
Row = TypeVar("Row", bound=models.Model)


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


def row_check(row: models.Model) -> None:
    """Raises ``BenchValueError``."""
    try:
        row.clean_fields()
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        raise BenchValueError(field, messages[0]) from error


def row_fill(row: Row, columns: Mapping[str, Any], what: str) -> Row:
    """Sets columns to values of JSON or TOML, which Django would convert where they are of another
    type. Returns the row. Raises ``BenchError``."""
    known = {column.name: column for column in row._meta.concrete_fields if column.name != "id"}
    for name, value in columns.items():
        is_json = isinstance(column := known.get(name), models.JSONField)
        if column is None or (is_json and type(value) is not type(column.get_default())):
            raise BenchError(f"{what} has no {name} that is {value!r}")
        setattr(row, name, value)
    try:
        row_check(row)
    except BenchValueError as error:
        raise BenchError(f"{what}: {error.field}: {error}") from error
    for name, value in columns.items():
        if getattr(row, name) != value:
            raise BenchError(f"{what} has no {name} that is {value!r}")
    return row
