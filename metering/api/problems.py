"""The REST API's refusals, its JSON and its CSV. Refusals are problem details (RFC 9457) with
helexa's codes; ``problem_response`` is REST framework's exception handler. No text of an unexpected
exception reaches a client."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection
from http import HTTPStatus
from typing import Any, cast

import orjson
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.db import Error as DjangoDatabaseError
from django.http import Http404, QueryDict
from rest_framework import exceptions
from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.response import Response

from inference.gateway.request.identify import REFUSED, NotedRefusal
from metering.errors import (
    KeyRefusedError,
    MeteringValueError,
    ScopeNotHeldError,
    UnknownNameError,
)

logger = logging.getLogger(__name__)

CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
AUTHENTICATE = "Bearer"
ROUTE_PART = re.compile(r"<(?:\w+:)?(\w+)>")


class ProblemError(Exception):
    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s
        self.status = status
        self.code = code
        self.detail = detail
        self.param = param


def invalid(param: str, detail: str) -> ProblemError:
    return ProblemError(400, "invalid_value", detail, param=param)


def ensure_one_of(words: Collection[str], param: str, value: object) -> None:
    """Raises ``ProblemError``."""
    if value not in words:
        raise invalid(param, f"{value!r} is none of {', '.join(words)}.")


def ensure_known_parameters(query: QueryDict, known: Collection[str]) -> None:
    """Raises ``ProblemError`` for another one, and for a NUL: PostgreSQL stores no such text, and
    its error would look like an offline database."""
    for name, values in query.lists():
        if name not in known:
            detail = f"There is no parameter {name!r} here."
            raise ProblemError(400, "unknown_parameter", detail, param=name)
        if any("\0" in value for value in values):
            raise invalid(name, f"A NUL is in {name!r}.")


CODES = {
    exceptions.MethodNotAllowed: "method_not_allowed",
    exceptions.NotAcceptable: "not_acceptable",
    exceptions.NotAuthenticated: "invalid_api_key",
    exceptions.AuthenticationFailed: "invalid_api_key",
    exceptions.NotFound: "unknown_url",
    exceptions.ParseError: "invalid_json",
    exceptions.PermissionDenied: "permission_denied",
    exceptions.UnsupportedMediaType: "unsupported_media_type",
}


def problem_response(error: Exception, context: dict[str, Any]) -> Response:
    problem = _problem(error)
    note_refusal(context.get("request"), problem, error)
    response = Response(
        {
            "type": "about:blank",
            "title": HTTPStatus(problem.status).phrase,
            "status": problem.status,
            "code": problem.code,
            "detail": problem.detail,
            "param": problem.param,
        },
        status=problem.status,
        content_type=CONTENT_TYPE,
    )
    if problem.status == HTTPStatus.UNAUTHORIZED:
        response["WWW-Authenticate"] = AUTHENTICATE
    if problem.status == HTTPStatus.SERVICE_UNAVAILABLE:
        response["Retry-After"] = str(math.ceil(problem.retry_after_s or RETRY_AFTER_S))
    return response


def note_refusal(request: object, problem: ProblemError, error: Exception) -> None:
    """For the gateway, which records the answer. A command has no request."""
    asked = getattr(request, "_request", None)
    if not isinstance(asked, ASGIRequest):
        return
    sender: Any = getattr(getattr(asked, "auth", None), "principal", None)
    if isinstance(error, KeyRefusedError):
        sender = error
    route = "" if asked.resolver_match is None else asked.resolver_match.route
    scope = cast(dict[str, Any], asked.scope)
    scope[REFUSED] = NotedRefusal(
        code=problem.code,
        message=problem.detail,
        account="" if sender is None else sender.account,
        key="" if sender is None else sender.key,
        endpoint="/" + ROUTE_PART.sub(r"{\1}", route),
    )


def _problem(error: Exception) -> ProblemError:
    match error:
        case ProblemError():
            return error
        case KeyRefusedError():
            return ProblemError(401, "invalid_api_key", str(error))
        case DjangoDatabaseError():
            logger.warning("the database does not answer: %s", error)
            detail = "The database does not answer; try again shortly."
            return ProblemError(503, "database_unavailable", detail)
        case MeteringValueError():
            return invalid(error.field, str(error))
        case UnknownNameError():
            return ProblemError(404, f"{error.noun}_not_found", str(error), param=error.noun)
        case ScopeNotHeldError():
            return ProblemError(403, "insufficient_scope", str(error), param="scopes")
        case Http404():
            return ProblemError(404, "unknown_url", "There is nothing at this URL.")
        case PermissionDenied():
            return ProblemError(403, "permission_denied", "This is not allowed.")
        case exceptions.APIException():
            code = CODES.get(type(error), "invalid_request")
            return ProblemError(error.status_code, code, str(error.detail))
    logger.error("a request to the API failed", exc_info=error)
    return ProblemError(500, "internal_error", "Something went wrong here; the log has the reason.")


MAX_DEPTH = 32


class PlainJsonParser(JSONParser):
    """Python's own parser accepts NaN and half a character, and raises for deep nesting."""

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        try:
            value = orjson.loads(stream.read())
        except orjson.JSONDecodeError as error:
            raise ParseError(f"The body is not valid JSON: {error.msg}.") from None
        level = [value]
        for _ in range(MAX_DEPTH):
            level = [child for parent in level for child in _children(parent)]
            if not level:
                return value
        raise ParseError(f"The body is nested deeper than {MAX_DEPTH} levels.")


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


class CsvRenderer(BaseRenderer):
    media_type = "text/csv"
    format = "csv"
    charset = "utf-8"

    def render(self, data: Any, *_args: Any, **_kwargs: Any) -> bytes:
        text = data if isinstance(data, str) else JSONRenderer().render(data).decode()
        return text.encode()
