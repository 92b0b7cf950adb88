"""``/api/me``, ``/api/usage``, ``/api/series``, and unknown paths under ``/api/``."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, cast

from django.urls import path, re_path
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param
from rest_framework.views import APIView

from fleet.api.access import MAX_OFFSET, ObjectView, number_in
from metering import selectors
from metering.api.accounts import Accounts, Budgets, Keys, Members
from metering.api.authentication import Caller
from metering.api.problems import CsvRenderer, ProblemError, ensure_known_parameters, ensure_one_of
from metering.api.requests import CaptureView, RequestsView, RequestView
from metering.errors import MeteringValueError
from metering.models import Account
from metering.nouns import SERIES
from metering.output import csv_headers
from metering.principal import Principal, Scope
from metering.selectors import BudgetStatus, UsageFilter, UsageGroup
from metering.series import FLEET_NAME, Kind, kind_of, moment, point_fields, range_of
from metering.series_store import series_points
from metering.usage_rows import usage_csv, usage_fields

DEFAULT_LIMIT = 1000
MAX_LIMIT = 10_000


@extend_schema(exclude=True)
class UnknownUrlView(ObjectView):
    """Answers 404 at every other URL, and to a command whose names make no URL."""

    def ensure_may(self, request: Request) -> None:
        """Every identified caller may."""

    def ensure_known_parameters(self, request: Request) -> None:
        """Any query gets the 404."""

    def get(self, request: Request) -> Response:
        raise ProblemError(404, "unknown_url", "There is nothing at this URL.")

    post = put = patch = delete = get


class MeView(APIView):
    """The caller's identity, and the use of each of their budgets."""

    def get(self, request: Request) -> Response:
        ensure_known_parameters(request.query_params, ("account", "format"))
        caller = _caller(request)
        if caller.principal is None:
            return Response(_person_without_account(caller))
        return Response(_person_without_account(caller) | _described(caller.principal))


class UsageView(APIView):
    """A key sees its own usage, a person that of their accounts, staff everybody's."""

    renderer_classes = (JSONRenderer, CsvRenderer)
    filters = ("account", "by", "format", "from", "key", "limit", "offset", "to")

    def get(self, request: Request) -> Response:
        ensure_known_parameters(request.query_params, self.filters)
        caller = _caller(request)
        caller.ensure_scope(Scope.USAGE_READ)
        given = request.query_params
        word = given.get("by", UsageGroup.DAY.value)
        ensure_one_of([group.value for group in UsageGroup], "by", word)
        by = UsageGroup(word)
        today = timezone.now().date()
        period = selectors.period_of(given.get("from"), given.get("to"), today=today)
        where = _filter(caller, given.get("account"), given.get("key"))
        rows = selectors.usage_list(by=by, period=period, where=where)
        if isinstance(request.accepted_renderer, CsvRenderer):
            return Response(usage_csv(by, rows), headers=csv_headers(f"usage-by-{by.value}"))
        limit = number_in(request, "limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
        offset = number_in(request, "offset", 0, 0, MAX_OFFSET)
        end = offset + limit
        total = selectors.usage_total(period=period, where=where)
        return Response(
            {
                **usage_fields(by, period, rows[offset:end], total),
                "num_rows": len(rows),
                "next": _next_url(request, end) if end < len(rows) else None,
            }
        )


def _caller(request: Request) -> Caller:
    return cast(Caller, request.auth)


def _person_without_account(caller: Caller) -> dict[str, Any]:
    return {
        "account": None,
        "key": None,
        "user": caller.username,
        "accounts": [{"name": name, "role": role} for name, role in caller.roles],
        "is_anonymous": False,
        "scopes": [],
        "models": None,
        "expires_at": None,
        "limits": None,
        "budgets": [],
    }


def _described(principal: Principal) -> dict[str, Any]:
    budgets = selectors.budgets_of(
        account=principal.account, key=principal.key, now_unix_s=time.time()
    )
    return {
        "account": principal.account,
        "key": principal.key or None,
        "is_anonymous": principal.is_anonymous,
        "scopes": [scope.value for scope in Scope if principal.has(scope)],
        "models": None if principal.models is None else sorted(principal.models),
        "expires_at": _moment(principal.expires_unix_s),
        "limits": {
            "key": asdict(principal.key_limits),
            "account": asdict(principal.account_limits),
        },
        "budgets": [_budget(budget) for budget in budgets],
    }


def _budget(budget: BudgetStatus) -> dict[str, Any]:
    values = asdict(budget)
    return values | {"window_ends_at": _moment(values.pop("window_ends_unix_s"))}


def _filter(caller: Caller, account: str | None, key: str | None) -> UsageFilter:
    """Raises ``ProblemError``: a caller cannot probe which accounts of others exist."""
    accounts = caller.accounts
    if account is not None:
        if accounts is not None and account not in accounts:
            raise ProblemError(
                403, "account_not_allowed", f"You may not see {account!r}.", param="account"
            )
        if accounts is None and not Account.objects.filter(name=account).exists():
            raise ProblemError(
                404, "account_not_found", f"There is no account {account!r}.", param="account"
            )
        accounts = frozenset({account})
    own_key = caller.principal.key if caller.principal is not None else ""
    if own_key:
        if key not in (None, own_key):
            raise ProblemError(403, "key_not_allowed", "A key sees its own usage.", param="key")
        key = own_key
    return UsageFilter(accounts=accounts, key=key)


def _next_url(request: Request, offset: int) -> str:
    return str(replace_query_param(request.build_absolute_uri(), "offset", str(offset)))


def _moment(unix_s: float | None) -> str | None:
    return None if unix_s is None else datetime.fromtimestamp(unix_s, UTC).isoformat()


class SeriesShape(serializers.Serializer[Any]):
    """``data`` has a point for each step, oldest first, the present one last. Percentiles and means
    are null where nothing was counted."""

    kind = serializers.ChoiceField(choices=[kind.value for kind in Kind])
    name = serializers.CharField()
    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    step_s = serializers.IntegerField()
    data = serializers.ListField(  # type: ignore[assignment]
        child=serializers.DictField(),
        help_text="at; of devices busy_percent, memory_used_bytes, memory_bytes; else requests, "
        "answered, cancelled, refused, failed, errors (by code), first_token_p50_ms, "
        "first_token_p95_ms, total_p50_ms, total_p95_ms, tokens and tokens_per_s, "
        "cost_micro_usd, queue_depth (mean and max), in_flight.",
    )


class SeriesView(ObjectView):
    serializer_class = SeriesShape
    filters = SERIES.filters
    filter_help = SERIES.filter_help
    page_parameters = ()

    def ensure_may(self, request: Request) -> None:
        """An account's series are for its people, operators and keys with ``accounts:read``."""
        if request.query_params.get("kind") != Kind.ACCOUNT:
            super().ensure_may(request)
            return
        caller = self.caller
        name = request.query_params.get("name", "")
        if caller.username is not None:
            may = caller.accounts is None or name in caller.accounts
        else:
            may = caller.has(Scope.ACCOUNTS_READ)
        if not may:
            raise ProblemError(
                403, "account_not_allowed", f"You may not see {name[:64]!r}.", param="name"
            )

    def get(self, request: Request) -> Response:
        given = request.query_params
        kind, name = kind_of(given.get("kind", Kind.FLEET)), given.get("name", FLEET_NAME)
        if bool(name) is (kind is Kind.FLEET):
            needed = "the fleet has no name" if name else f"give the name of the {kind}"
            raise MeteringValueError("name", needed)
        found = range_of(given.get("range", ""), given.get("step", ""), now_unix_s=time.time())
        points = series_points(
            kind=kind,
            name=name,
            since_unix_s=found.since_unix_s,
            until_unix_s=found.until_unix_s,
            step_s=found.step_s,
        )
        return Response(
            {
                "kind": kind.value,
                "name": name,
                "since": moment(found.since_unix_s).isoformat(),
                "until": moment(found.until_unix_s).isoformat(),
                "step_s": found.step_s,
                "data": [
                    {"at": moment(at).isoformat(), **point_fields(kind, figures, found.step_s)}
                    for at, figures in points.items()
                ],
            }
        )


urlpatterns = [
    path("me", MeView.as_view()),
    path("usage", UsageView.as_view()),
    path("requests", RequestsView.as_view()),
    path("requests/<str:pk>", RequestView.as_view()),
    path("requests/<str:pk>/capture", CaptureView.as_view()),
    path("series", SeriesView.as_view()),
    *(one for noun in (Accounts, Members, Keys, Budgets) for one in noun.urls()),
    re_path(r"", UnknownUrlView.as_view()),
]
