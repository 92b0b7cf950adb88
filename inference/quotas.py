"""Quotas of one owner's rows, counted and added to in one transaction, one owner at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import connections, transaction
from django.db.models import Count, QuerySet, Sum

LOCK_CLASS = 0x71756F74


class QuotaFullError(Exception):
    def __init__(self, used: Used) -> None:
        super().__init__(f"{used.number} of {used.size_bytes} bytes")
        self.used = used


@dataclass(frozen=True, slots=True)
class Used:
    number: int
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Quota:
    number: int
    size_bytes: int | None = None

    def check(self, used: Used, num_more_bytes: int = 0) -> None:
        """Raises ``QuotaFullError`` if one more does not fit."""
        has_bytes = self.size_bytes is None or used.size_bytes + num_more_bytes <= self.size_bytes
        if used.number >= self.number or not has_bytes:
            raise QuotaFullError(used)


def used_of(rows: QuerySet[Any]) -> Used:
    total = rows.aggregate(number=Count("pk"), size_bytes=Sum("size_bytes"))
    return Used(total["number"], int(total["size_bytes"] or 0))


@contextmanager
def quota_locked(kind: str, owner: str, using: str = "default") -> Iterator[None]:
    """A transaction that holds a lock on this owner's objects of one ``kind``: no other transaction
    can add one."""
    connection = connections[using]
    with transaction.atomic(using=using):
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                locked = f"{kind} {owner}"
                cursor.execute(
                    "SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [LOCK_CLASS, locked]
                )
        yield
