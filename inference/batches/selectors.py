"""Reads of files and batches, each only of one account's. No writes."""

from __future__ import annotations

from dataclasses import fields
from typing import TypeVar

from django.db.models import Model, QuerySet
from django.utils import timezone

from inference.batches.models import Batch, StoredFile
from inference.batches.records import OPEN, BatchRecord, FileRecord, is_id
from inference.quotas import Used, used_of

Row = TypeVar("Row", bound=Model)
Record = TypeVar("Record", FileRecord, BatchRecord)


def file_find(file_id: str, *, account: str) -> FileRecord | None:
    if not is_id(file_id):
        return None
    row = _kept_files(account).filter(pk=file_id).first()
    return None if row is None else record_of(FileRecord, row)


def file_list(
    *, account: str, limit: int, after: str | None = None, purpose: str | None = None
) -> list[FileRecord]:
    """The newest first; one more than ``limit`` where there are more."""
    rows = _kept_files(account)
    if purpose is not None:
        rows = rows.filter(purpose=purpose)
    return [record_of(FileRecord, row) for row in _behind(rows, after)[: limit + 1]]


def account_usage(account: str, using: str = "default") -> Used:
    return used_of(_kept_files(account, using))


def files_expired(limit: int) -> list[str]:
    rows = StoredFile.objects.filter(expires_at__lte=timezone.now()).order_by("expires_at")
    return list(rows.values_list("pk", flat=True)[:limit])


def _kept_files(account: str, using: str = "default") -> QuerySet[StoredFile]:
    rows = StoredFile.objects.using(using).filter(account=account)
    return rows.exclude(expires_at__lte=timezone.now())


def num_open_batches(account: str, using: str = "default") -> int:
    return Batch.objects.using(using).filter(account=account, status__in=OPEN).count()


def batch_find(batch_id: str, *, account: str, dialect: str) -> BatchRecord | None:
    if not is_id(batch_id):
        return None
    row = Batch.objects.filter(pk=batch_id, account=account, dialect=dialect).first()
    return None if row is None else record_of(BatchRecord, row)


def batch_list(
    *, account: str, dialect: str, limit: int, after: str | None = None
) -> list[BatchRecord]:
    """The newest first; one more than ``limit`` where there are more."""
    rows = Batch.objects.filter(account=account, dialect=dialect)
    return [record_of(BatchRecord, row) for row in _behind(rows, after)[: limit + 1]]


def batches_unclaimed(limit: int) -> list[BatchRecord]:
    rows = Batch.objects.filter(status__in=OPEN).exclude(lease_until__gte=timezone.now())
    return [record_of(BatchRecord, row) for row in rows.order_by("created_at", "id")[:limit]]


def _behind(rows: QuerySet[Row], after: str | None) -> QuerySet[Row]:
    """Nothing for an unknown id."""
    if after is None:
        return rows
    if not is_id(after):
        return rows.none()
    last = rows.filter(pk=after).values_list("created_at", flat=True).first()
    if last is None:
        return rows.none()
    earlier = rows.filter(created_at__lt=last)
    return earlier | rows.filter(created_at=last, pk__lt=after)


def record_of(kind: type[Record], row: Model) -> Record:
    """``kind`` has fields of the row's names."""
    return kind(**{one.name: getattr(row, one.name) for one in fields(kind)})
