"""Shared by the operator API's views: permissions, parameters, pages, refusals. Reading needs the
scope ``fleet:read`` or a staff session; writing needs ``fleet:write``, or a staff session with the
admin's permission and its CSRF token."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from io import BytesIO
from typing import Any, cast

import orjson
from django.contrib.auth.models import AnonymousUser
from django.db import Error as DjangoDatabaseError
from django.db.models import BooleanField
from django.http import HttpRequest, QueryDict
from django.urls import resolve
from rest_framework.exceptions import MethodNotAllowed
from rest_framework.filters import BaseFilterBackend
from rest_framework.generics import GenericAPIView
from rest_framework.mixins import ListModelMixin
from rest_framework.pagination import LimitOffsetPagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer

from fleet.errors import CatalogueValueError, FleetError, UnknownNeuronError
from metering.api.authentication import Caller
from metering.api.problems import ProblemError, ensure_known_parameters, ensure_one_of, invalid
from metering.audit import COMMAND, Actor, key_actor, user_actor
from metering.principal import Scope

MAX_OFFSET = 10**9
READING = ("GET", "HEAD", "OPTIONS")
WRITERS_PERMISSION = "fleet.change_cataloguemodel"
VERBS = {"POST": "add", "PATCH": "change", "DELETE": "delete"}
BOOLEANS = {"true": True, "false": False}
DRY_RUN = "dry_run"
API_URLS = "helexa_site.api_urls"
COMMAND_CALLER = Caller(principal=None, is_command=True)


class Page(LimitOffsetPagination):
    default_limit = 100
    max_limit = 1000

    def get_limit(self, request: Request) -> int:
        """Raises ``ProblemError`` for a limit out of bounds, instead of another page size."""
        return number_in(request, "limit", self.default_limit, 1, self.max_limit)

    def get_offset(self, request: Request) -> int:
        return number_in(request, "offset", 0, 0, MAX_OFFSET)

    def get_paginated_response(self, data: Any) -> Response:
        return Response({"data": data, "num_rows": self.count, "next": self.get_next_link()})

    def get_paginated_response_schema(self, schema: Any) -> Any:
        return {
            "type": "object",
            "required": ["data", "num_rows", "next"],
            "properties": {
                "data": schema,
                "num_rows": {"type": "integer"},
                "next": {"type": "string", "format": "uri", "nullable": True},
            },
        }


class EqualFilters(BaseFilterBackend):
    """``filters`` of a view: parameter → field (values by commas); empty: the view reads it."""

    def filter_queryset(self, request: Request, queryset: Any, view: Any) -> Any:
        for name, field in view.filters.items():
            if field and name in request.query_params:
                values = request.query_params[name].split(",")
                words = _words_of(queryset, field)
                for value in values if words else ():
                    ensure_one_of(words, name, value)
                is_flag = words == [*BOOLEANS]
                wanted = [BOOLEANS[value] for value in values] if is_flag else values
                queryset = queryset.filter(**{f"{field}__in": wanted})
        return queryset

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "in": "query",
                "required": False,
                "schema": {"type": "string"},
                "description": view.filter_help.get(name)
                or ", ".join(_words_of(view.queryset, field)),
            }
            for name, field in view.filters.items()
        ]


def _words_of(queryset: Any, field: str) -> list[str]:
    if queryset is None or not field:
        return []
    columns = {column.name: column for column in queryset.model._meta.get_fields()}
    if isinstance(columns.get(field), BooleanField):
        return [*BOOLEANS]
    choices = getattr(columns.get(field), "choices", None) or ()
    return [str(word) for word, _ in choices]


class FleetView(GenericAPIView[Any]):
    """``permission_of``: the model, as ``fleet.alias``, whose permissions people need for writing,
    each method its own; empty: the catalogue's. ``reads_by_permission``: also for reading."""

    read_scope = Scope.FLEET_READ
    write_scope = Scope.FLEET_WRITE
    permission_of = ""
    reads_by_permission = False
    action: str
    pagination_class: Any = Page
    filter_backends: Any = (EqualFilters,)
    filters: Mapping[str, str] = {}
    filter_help: Mapping[str, str] = {}
    page_parameters: tuple[str, ...] = ("limit", "offset")
    post_removes = False

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        self.ensure_may(request)
        if request.method is None or not hasattr(self, request.method.lower()):
            raise MethodNotAllowed(request.method or "")
        self.ensure_known_parameters(request)

    def handle_exception(self, exc: Exception) -> Response:
        """Raises ``django.db.Error`` to a command: an operator at this machine may read it."""
        if isinstance(exc, DjangoDatabaseError) and hasattr(self.request, "_force_auth_user"):
            raise exc
        return super().handle_exception(problem_of(exc) if isinstance(exc, FleetError) else exc)

    def ensure_may(self, request: Request) -> None:
        caller = self.caller
        scope = self.read_scope if request.method in READING else self.write_scope
        if caller.username is not None:
            permission = self.permission(request.method or "")
            user = request.user
            may = user.is_staff and (permission is None or user.has_perm(permission))
        else:
            may = caller.has(scope)
        if not may:
            raise ProblemError(
                403, "insufficient_scope", f"This needs the scope {scope.value}, or a staff login."
            )

    def permission(self, method: str) -> str | None:
        """``None``: a staff login is enough."""
        if method in READING and not self.reads_by_permission:
            return None
        if not self.permission_of:
            return WRITERS_PERMISSION
        app, _, model = self.permission_of.partition(".")
        return f"{app}.{VERBS.get(method, 'view')}_{model}"

    @property
    def caller(self) -> Caller:
        return cast(Caller, self.request.auth)

    @property
    def actor(self) -> Actor:
        caller = self.caller
        if caller.is_command:
            return COMMAND
        if caller.username is not None:
            return user_actor(caller.username)
        assert caller.principal is not None, "nobody was let in"
        return key_actor(caller.principal.key or caller.principal.account)

    def ensure_known_parameters(self, request: Request) -> None:
        known = {*self.filters, "account", "format", *self.page_parameters}
        if request.method == "DELETE" or (request.method == "POST" and self.post_removes):
            known.add(DRY_RUN)
        ensure_known_parameters(request.query_params, known)
        if any("\0" in str(part) for part in self.kwargs.values()):
            raise ProblemError(404, "unknown_url", "There is nothing at this URL.")


class ObjectView(FleetView):
    pagination_class = None
    serializer_class: Any = Serializer


class FleetListView(ListModelMixin, FleetView):
    def get(self, request: Request) -> Response:
        return self.list(self.request)


def problem_of(error: FleetError) -> ProblemError:
    if isinstance(error, UnknownNeuronError):
        return ProblemError(404, "neuron_not_found", str(error), param="neuron")
    param = error.field if isinstance(error, CatalogueValueError) else None
    return ProblemError(
        error.http_status, error.code, str(error), param=param, retry_after_s=error.retry_after_s
    )


def body_of(request: Request, *known: str) -> dict[str, Any]:
    """The JSON object of a request, with these fields and no others. Raises ``ProblemError``."""
    body = request.data
    if not isinstance(body, dict):
        raise ProblemError(400, "invalid_json", "The body is to be a JSON object.")
    for name in body:
        if name not in known:
            fields = ", ".join(known) or "none"
            raise ProblemError(
                400, "unknown_parameter", f"There is no field {name!r} here: {fields}.", param=name
            )
    return dict(body)


def text_in(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value or "\x00" in value:
        raise invalid(name, f"{name!r} is to be text.")
    return value


def flag_in(body: dict[str, Any], name: str) -> bool:
    """False where it is missing. Raises ``ProblemError``."""
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise invalid(name, f"{name!r} is to be true or false.")
    return value


MAX_SECONDS = 86_400


def seconds_in(body: dict[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is not None and (type(value) is not int or not 0 <= value <= MAX_SECONDS):
        raise invalid(
            name, f"{name!r} is to be a whole number of seconds, from 0 to {MAX_SECONDS}."
        )
    return value


def texts_in(body: dict[str, Any], name: str) -> list[str]:
    """Empty where it is missing. Raises ``ProblemError``."""
    value = body.get(name, [])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise invalid(name, f"{name!r} is to be a list of texts.")
    return value


def number_in(request: Request, name: str, default: int, least: int, most: int) -> int:
    """A query parameter. Raises ``ProblemError``."""
    word = request.query_params.get(name, str(default))
    is_number = word.isascii() and word.isdigit() and len(word) <= len(str(most))
    if not is_number or not least <= int(word) <= most:
        raise invalid(name, f"{name!r} is to be a number from {least} to {most}.")
    return int(word)


class CommandRequest(HttpRequest):
    _read_started = False
    _force_auth_user, _force_auth_token = AnonymousUser(), COMMAND_CALLER
    """REST framework reads these, as its own tests do."""

    def get_host(self) -> str:
        """No client sent one: there is nothing to check."""
        return "localhost"


def command_answer(method: str, path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
    """Calls an operation in this process, as ``manage.py``, whose user may do everything. Returns
    status and JSON as a server would at ``/api/{path}``. Raises ``django.db.Error``."""
    quoted, _, query = path.partition("?")
    content = b"" if body is None else orjson.dumps(body)
    request: Any = CommandRequest()
    request.method, request.path = method, f"/api/{quoted}"
    request.GET = QueryDict(query)
    request.META = {
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(content)),
    }
    request._stream = BytesIO(content)
    found: Any = resolve(f"/api/{urllib.parse.unquote(quoted)}", API_URLS)
    answer: Response = found.func(request, **found.kwargs)
    return answer.status_code, answer.render().content
