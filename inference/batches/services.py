"""Reads of files and batches, each for clients only of one account's; and writes. A conditional
update ends a batch, once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.db.models import Model, QuerySet
from django.utils import timezone

from inference.batches.models import Batch, StoredFile
from inference.batches.records import (
    CANCELLING,
    ENDED,
    OPEN,
    RUNNING,
    WAITING,
    BatchRecord,
    FileRecord,
    is_id,
)
from inference.quotas import Quota, Used, quota_locked, used_of

MAX_NAME_CHARS = 255
LEASE_S = 30.0
"""Many times the period in which gateways renew it."""
Row = TypeVar("Row", bound=Model)
Record = TypeVar("Record", FileRecord, BatchRecord)


def file_find(file_id: str, *, account: str) -> FileRecord | None:
    if not is_id(file_id):
        return None
    row = _kept_files(account).filter(pk=file_id).first()
    return None if row is None else _record_of(FileRecord, row)


def file_list(
    *, account: str, limit: int, after: str | None = None, purpose: str | None = None
) -> list[FileRecord]:
    """The newest first; one more than ``limit`` where there are more."""
    rows = _kept_files(account)
    if purpose is not None:
        rows = rows.filter(purpose=purpose)
    return [_record_of(FileRecord, row) for row in _behind(rows, after)[: limit + 1]]


def account_usage(account: str, using: str = "default") -> Used:
    return used_of(_kept_files(account, using))


def files_expired(limit: int) -> list[str]:
    rows = StoredFile.objects.filter(expires_at__lte=timezone.now()).order_by("expires_at")
    return list(rows.values_list("pk", flat=True)[:limit])


def _kept_files(account: str, using: str = "default") -> QuerySet[StoredFile]:
    rows = StoredFile.objects.using(using).filter(account=account)
    return rows.exclude(expires_at__lte=timezone.now())


def _num_open_batches(account: str, using: str = "default") -> int:
    return Batch.objects.using(using).filter(account=account, status__in=OPEN).count()


def batch_find(batch_id: str, *, account: str, dialect: str) -> BatchRecord | None:
    if not is_id(batch_id):
        return None
    row = Batch.objects.filter(pk=batch_id, account=account, dialect=dialect).first()
    return None if row is None else _record_of(BatchRecord, row)


def batch_list(
    *, account: str, dialect: str, limit: int, after: str | None = None
) -> list[BatchRecord]:
    """The newest first; one more than ``limit`` where there are more."""
    rows = Batch.objects.filter(account=account, dialect=dialect)
    return [_record_of(BatchRecord, row) for row in _behind(rows, after)[: limit + 1]]


def batches_unclaimed(limit: int) -> list[BatchRecord]:
    rows = Batch.objects.filter(status__in=OPEN).exclude(lease_until__gte=timezone.now())
    return [_record_of(BatchRecord, row) for row in rows.order_by("created_at", "id")[:limit]]


def _behind(rows: QuerySet[Row], after: str | None) -> QuerySet[Row]:
    """Returns no rows for an unknown id."""
    if after is None:
        return rows
    if not is_id(after):
        return rows.none()
    last = rows.filter(pk=after).values_list("created_at", flat=True).first()
    if last is None:
        return rows.none()
    earlier = rows.filter(created_at__lt=last)
    return earlier | rows.filter(created_at=last, pk__lt=after)


def _record_of(kind: type[Record], row: Model) -> Record:
    return kind(**{one.name: getattr(row, one.name) for one in fields(kind)})


def file_add(
    *,
    file_id: str,
    account: str,
    name: str,
    purpose: str,
    size_bytes: int,
    quota: Quota,
    lasts: timedelta | None = None,
    using: str = "default",
) -> FileRecord:
    """Raises ``QuotaFullError``."""
    now = timezone.now()
    with quota_locked("files", account, using):
        quota.check(account_usage(account, using), size_bytes)
        row = StoredFile.objects.using(using).create(
            id=file_id,
            account=account,
            name=name[:MAX_NAME_CHARS],
            purpose=purpose,
            size_bytes=size_bytes,
            created_at=now,
            expires_at=None if lasts is None else now + lasts,
        )
    return _record_of(FileRecord, row)


def result_save(*, file_id: str, account: str, name: str, purpose: str, size_bytes: int) -> None:
    """Regardless of quotas."""
    StoredFile.objects.update_or_create(
        id=file_id,
        defaults={
            "account": account,
            "name": name[:MAX_NAME_CHARS],
            "purpose": purpose,
            "size_bytes": size_bytes,
            "created_at": timezone.now(),
        },
    )


def file_delete(*, file_id: str, account: str) -> bool:
    deleted, _ = StoredFile.objects.filter(pk=file_id, account=account).delete()
    return deleted > 0


def files_forget(*, file_ids: Collection[str]) -> None:
    StoredFile.objects.filter(pk__in=file_ids, expires_at__lte=timezone.now()).delete()


def batch_create(
    *, lasts: timedelta, fields: Mapping[str, Any], max_open: int, using: str = "default"
) -> BatchRecord:
    account, now = fields["account"], timezone.now()
    with quota_locked("batches", account, using):
        Quota(max_open).check(Used(_num_open_batches(account, using)))
        row = Batch.objects.using(using).create(
            status=WAITING, created_at=now, expires_at=now + lasts, **fields
        )
    return _record_of(BatchRecord, row)


def batch_cancel(*, batch_id: str, account: str) -> None:
    """A batch without a lease holder is cancelled by the next gateway that claims it."""
    Batch.objects.filter(pk=batch_id, account=account, status__in=(WAITING, RUNNING)).update(
        status=CANCELLING, cancelled_at=timezone.now()
    )


def batch_delete(*, batch_id: str, account: str) -> bool:
    """``False``: it is missing, or has not ended."""
    rows = Batch.objects.filter(pk=batch_id, account=account, status__in=ENDED)
    deleted, _ = rows.delete()
    return deleted > 0


def batch_claim(*, batch_id: str, holder: str) -> BatchRecord | None:
    """``None``: another gateway holds the lease, or the batch has ended."""
    now = timezone.now()
    open_ = Batch.objects.filter(pk=batch_id, status__in=OPEN)
    claimed = open_.exclude(lease_until__gte=now).update(
        lease_until=_lease_end(now), lease_holder=holder
    )
    if claimed != 1:
        return None
    Batch.objects.filter(pk=batch_id, lease_holder=holder, status=WAITING).update(
        status=RUNNING, started_at=now
    )
    return _record_of(BatchRecord, Batch.objects.get(pk=batch_id))


def batch_progress(*, batch_id: str, holder: str, counts: Mapping[str, int]) -> str | None:
    """Renews the lease. Returns the batch's status; ``None``: the lease is lost."""
    mine = Batch.objects.filter(pk=batch_id, lease_holder=holder, status__in=OPEN)
    if mine.update(lease_until=_lease_end(timezone.now()), **counts) != 1:
        return None
    return Batch.objects.values_list("status", flat=True).get(pk=batch_id)


def batch_end(
    *, batch_id: str, holder: str, status: str, counts: Mapping[str, int], failure: str = ""
) -> bool:
    mine = Batch.objects.filter(pk=batch_id, lease_holder=holder, status__in=OPEN)
    changed = mine.update(
        status=status, failure=failure, ended_at=timezone.now(), lease_until=None, **counts
    )
    return changed == 1


def batch_release(*, batch_id: str, holder: str) -> None:
    Batch.objects.filter(pk=batch_id, lease_holder=holder).update(lease_until=None, lease_holder="")


def _lease_end(now: datetime) -> datetime:
    return now + timedelta(seconds=LEASE_S)
