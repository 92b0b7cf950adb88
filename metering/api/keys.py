"""``/api/keys``: made, shown once, changed and revoked; never deleted and never read again."""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet
from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from fleet.api.access import text_in
from fleet.api.rows import RowsView, assigned, new_row, values_of_body
from metering import selectors, services
from metering.api.accounts import SHOWN_ONCE, AccountingView
from metering.api.problems import ProblemError, ensure_one_of, invalid
from metering.api.shapes import BudgetShape, KeyShape, NewKeyShape
from metering.errors import MeteringValueError
from metering.models import ApiKey
from metering.nouns import BUDGETS, KEYS
from metering.principal import RateLimits
from metering.services import DEFAULT_SCOPES, Cap

STATUSES = ("active", "expired", "disabled", "revoked")
COLUMNS = {"models": "model_names"}
"""Fields with another name in the table."""
AS_GIVEN = (
    *("name", "scopes", "models", "names_end_user", "may_leave_network"),
    *("expires_at", "capture_until"),
)
"""Fields of a new key that its service has defaults for."""
CAP_FIELDS = ("unit", "cap", "window", "window_s")


class Keys(RowsView, AccountingView):
    """Newest first, revoked ones too."""

    noun = KEYS
    serializer_class = KeyShape
    permission_of = "metering.apikey"
    queryset = ApiKey.objects.select_related("account").prefetch_related("budgets")
    id_part = "<str:prefix>"
    new_shape = NewKeyShape
    new_fields = {
        "budgets": BudgetShape(many=True, required=False),
        "key": serializers.CharField(required=False, help_text="One that was chosen elsewhere."),
    }

    def handle_exception(self, exc: Exception) -> Response:
        """Names the body's field where a service names the column."""
        if isinstance(exc, MeteringValueError) and exc.field == COLUMNS["models"]:
            exc = MeteringValueError("models", str(exc))
        return super().handle_exception(exc)

    def permission(self, method: str) -> str | None:
        """Revoking changes a key: keys are never deleted."""
        return super().permission("PATCH" if method == "DELETE" else method)

    def filter_queryset(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        found = super().filter_queryset(queryset)
        words = self.request.query_params.get("status")
        return found if words is None else found.filter(_has_status(words))

    def find(self, prefix: str) -> ApiKey:
        return selectors.key_find(prefix)

    def create(self, request: Request) -> Response:
        """Makes a key, or imports the ``key`` that is given. The answer shows it once."""
        body = new_row(request, KEYS, *self.new_fields)
        imported = text_in(body, "key") if "key" in body else None
        self.ensure_may_grant(body.get("scopes", list(DEFAULT_SCOPES)))
        given = {COLUMNS.get(name, name): body[name] for name in AS_GIVEN if name in body}
        created = services.key_create(
            actor=self.actor,
            account=selectors.account_find(body["account"]),
            limits=RateLimits.of(body),
            caps=_caps(body.get("budgets", [])),
            imported=imported,
            **given,
        )
        shown = {"key": created.key, **self.shown(created.row)}
        return Response(shown, status=201, headers=SHOWN_ONCE)

    def change(self, key: ApiKey, values: dict[str, Any]) -> None:
        """Changes the given fields. A revoked key stays as it is."""
        if key.revoked_at is not None:
            raise ProblemError(409, "key_revoked", f"{key.prefix} was revoked: make another key.")
        self.ensure_may_grant(values.get("scopes", []))
        columns = {COLUMNS.get(field, field): value for field, value in values.items()}
        services.key_update(actor=self.actor, key=key, changed_fields=assigned(key, columns))

    def remove(self, key: ApiKey) -> None:
        """Revokes it, on every gateway within a second. Its row stays: the ledger names it."""
        services.key_revoke(actor=self.actor, key=key)


def _has_status(words: str) -> Q:
    now = timezone.now()
    may_be_used = Q(revoked_at=None, account__enabled=True)
    by_status = {
        "active": may_be_used & (Q(expires_at=None) | Q(expires_at__gt=now)),
        "expired": may_be_used & Q(expires_at__lte=now),
        "disabled": Q(revoked_at=None, account__enabled=False),
        "revoked": Q(revoked_at__isnull=False),
    }
    found = Q(pk__in=())
    for word in words.split(","):
        ensure_one_of(STATUSES, "status", word)
        found |= by_status[word]
    return found


def _caps(given: object) -> list[Cap]:
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise invalid("budgets", "A list of budgets is wanted.")
    fields = tuple(field for field in BUDGETS.fields if field.name in CAP_FIELDS)
    for name in {name for one in given for name in one} - set(CAP_FIELDS):
        detail = f"There is no field {name!r} here: {', '.join(CAP_FIELDS)}."
        raise ProblemError(400, "unknown_parameter", detail, param="budgets")
    return [Cap(**values_of_body(one, fields)) for one in given]
