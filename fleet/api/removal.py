"""Shared by every removal: removing for good, or a dry run that reports its effects.

A dry run is the removal itself in a transaction that is rolled back: it makes the same checks, and
answers with the audit entries that the removal would leave. Services send messages only after a
commit, so none is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import transaction
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.response import Response

from fleet import selectors
from fleet.api.access import BOOLEANS, DRY_RUN, Call
from metering.actor import Actor
from metering.api.problems import ProblemError
from metering.models import AuditEntry


class WouldShape(serializers.ModelSerializer[AuditEntry]):
    class Meta:
        model = AuditEntry
        fields = ("action", "object_id", "detail")


class DryRunShape(serializers.Serializer[Any]):
    would = WouldShape(many=True, help_text="The audit entries that the removal would leave.")


DRY_RUN_PARAMETER = OpenApiParameter(DRY_RUN, bool, description="Only reports what would be done.")
removal_schema = extend_schema(
    parameters=[DRY_RUN_PARAMETER],
    responses={204: None, 200: DryRunShape},
)
"""The OpenAPI schema of a ``delete`` that answers with ``removed``."""


def removed(call: Call, actor: Actor, remove: Callable[[], object]) -> Response:
    """204 once ``remove`` is done, or 200 with what it would do. Raises ``ProblemError``."""
    if not is_dry(call):
        remove()
        return Response(status=204)
    return would_response(actor, remove)


def would_response(actor: Actor, remove: Callable[[], object]) -> Response:
    """200 with what ``remove`` would do."""
    return Response({"would": WouldShape(would(actor, remove), many=True).data})


def would(actor: Actor, change: Callable[[], object]) -> list[AuditEntry]:
    """Makes the change, reads its audit entries and rolls everything back."""
    with transaction.atomic():
        newest = AuditEntry.objects.order_by("-id").values_list("id", flat=True).first() or 0
        change()
        entries = AuditEntry.objects.filter(id__gt=newest, actor=str(actor)[:200]).order_by("id")
        found = list(entries)
        transaction.set_rollback(True)
    selectors.catalogue_cache_clear()
    return found


def is_dry(call: Call) -> bool:
    """Raises ``ProblemError``."""
    word = call.query_params.get(DRY_RUN, "false")
    if word not in BOOLEANS:
        detail = f"{word!r} is neither true nor false."
        raise ProblemError(400, "invalid_value", detail, param=DRY_RUN)
    return BOOLEANS[word]
