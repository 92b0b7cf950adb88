"""``/api/requests``: the records of requests. Operators see all, people those of their accounts, a
key its own."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import AbstractUser
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from fleet.api.access import ObjectView, number_in
from metering.api.accounts import SHOWN_ONCE
from metering.api.authentication import Caller
from metering.api.problems import CsvRenderer, ProblemError
from metering.ledger.entries import Outcome
from metering.models import RequestRecord
from metering.output import csv_headers
from metering.pages import reader_of_user
from metering.principal import Scope
from metering.request_filters import (
    COLUMNS,
    FILTERS,
    MAX_CSV_ROWS,
    RequestFilter,
    all_fields,
    captured_request_read,
    filter_of,
    request_before,
    request_find,
    requests_csv,
    requests_list,
)

DEFAULT_LIMIT = 100
MAX_LIMIT = 1000
CAPTURED_TEXTS = ("headers", "request", "trace", "answer")
PARAMETERS = {
    **dict.fromkeys(FILTERS, ""),
    "key": "A key's prefix or its name.",
    "id": "The beginning of the id, eight digits of it or more.",
    "since": "A time in ISO 8601, or 30m, 2h, 7d ago.",
    "until": "As since; not included.",
    "outcome": ", ".join(outcome.value for outcome in Outcome),
    "before": "Older ones than the request of this id: the next page.",
    "limit": f"1 to {MAX_LIMIT}; of CSV to {MAX_CSV_ROWS}.",
}


class RequestShape(serializers.ModelSerializer[Any]):
    """``code`` is null where the request was answered; times count from its first header."""

    id = serializers.CharField(help_text="The x-request-id of its response.")
    key_name = serializers.CharField()

    class Meta:
        model = RequestRecord
        fields = read_only_fields = COLUMNS
        extra_kwargs = {
            "account": {"help_text": "Empty where the caller is not known."},
            "key": {"help_text": "The key's public prefix."},
            "model": {"help_text": "The catalogue's name; empty: none was found."},
            "unit": {
                "help_text": "What a request without tokens is metered by: request, second, "
                "character or image; empty: it has tokens."
            },
        }


class CaptureShape(serializers.Serializer[Any]):
    """Masked and cut. Parts that were not captured are empty."""

    id = serializers.CharField()
    headers = serializers.CharField()
    request = serializers.CharField()
    trace = serializers.CharField(help_text="The rendered prompt, the raw text and the parsers.")
    answer = serializers.CharField()


class RequestPageShape(serializers.Serializer[Any]):
    data = RequestShape(many=True)  # type: ignore[assignment]
    has_more = serializers.BooleanField()
    next = serializers.URLField(allow_null=True)


class RequestView(ObjectView):
    serializer_class: type[serializers.Serializer[Any]] = RequestShape
    queryset = RequestRecord.objects.none()

    def ensure_may(self, request: Request) -> None:
        if not self.caller.sees_all:
            self.caller.ensure_scope(Scope.USAGE_READ)

    def get(self, request: Request, pk: str) -> Response:
        """One request by its id; another caller's is not found."""
        record = request_find(pk, where=_visible(self.caller))
        return Response(all_fields([record])[0])


class CaptureView(RequestView):
    """The captured bodies of a request; each reading is audited."""

    serializer_class = CaptureShape

    def get(self, request: Request, pk: str) -> Response:
        record = request_find(pk, where=_visible(self.caller))
        if not _may_read_bodies(request, self.caller, record):
            raise ProblemError(
                403,
                "insufficient_scope",
                "Operators, keys with the scope accounts:write, and people who may change the key "
                "that asked read captured bodies.",
            )
        captured = captured_request_read(actor=self.actor, record=record)
        if captured is None:
            raise ProblemError(
                404, "capture_not_found", "No bodies of this request are stored.", param="id"
            )
        texts = {name: getattr(captured, name) for name in CAPTURED_TEXTS}
        return Response({"id": record.request_id.hex, **texts}, headers=SHOWN_ONCE)


class RequestsView(RequestView):
    """Newest first."""

    renderer_classes = (JSONRenderer, CsvRenderer)
    filters = dict.fromkeys(PARAMETERS, "")
    filter_help = PARAMETERS
    page_parameters = ()

    @extend_schema(responses=RequestPageShape, operation_id="requests_list")
    def get(self, request: Request) -> Response:  # type: ignore[override]
        visible = _visible(self.caller)
        words = {name: str(value) for name, value in request.query_params.items()}
        where = filter_of(words, visible=visible, now=timezone.now())
        before = request_before(words.get("before", ""), where=visible)
        if isinstance(request.accepted_renderer, CsvRenderer):
            limit = number_in(request, "limit", MAX_CSV_ROWS, 1, MAX_CSV_ROWS)
            found = requests_list(where=where, limit=limit, before=before)
            return Response(requests_csv(found), headers=csv_headers("requests"))
        limit = number_in(request, "limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
        found = requests_list(where=where, limit=limit + 1, before=before)
        shown = found[:limit]
        has_more = len(found) > limit
        return Response(
            {
                "data": all_fields(shown),
                "has_more": has_more,
                "next": _next_url(request, shown[-1]) if has_more else None,
            }
        )


def _visible(caller: Caller) -> RequestFilter:
    if caller.sees_all:
        return RequestFilter()
    if caller.username is not None:
        return RequestFilter(accounts=caller.accounts)
    principal = caller.principal
    assert principal is not None, "a caller without an identity was let in"
    return RequestFilter(accounts=frozenset({principal.account}), own_key=principal.key)


def _may_read_bodies(request: Request, caller: Caller, record: RequestRecord) -> bool:
    if caller.username is not None:
        return reader_of_user(cast(AbstractUser, request.user)).may_read_bodies(record)
    return caller.has(Scope.ACCOUNTS_WRITE)


def _next_url(request: Request, last: RequestRecord) -> str:
    return str(replace_query_param(request.build_absolute_uri(), "before", last.request_id.hex))
