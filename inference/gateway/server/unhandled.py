"""Records requests that no consumer sees: refused by their head, address or origin, or by Django.
Refusals of origins are CORS's (https://fetch.spec.whatwg.org)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any

import orjson
from starlette.datastructures import Headers as RequestHeaders
from starlette.middleware.cors import CORSMiddleware

from inference.gateway.gateway import Gateway
from inference.gateway.request.identify import (
    LOCAL_ORIGIN,
    ORIGIN_NOT_ALLOWED,
    REFUSED,
    REQUEST_ID,
    NotedRefusal,
)
from inference.gateway.request.outcome import Call
from inference.gateway.server.paths import api_path_of, endpoint_of, unknown_url
from inference.request_ids import new_request_id
from inference.wire.dialect import request_id_headers
from inference.wire.error_envelopes import openai_errors
from inference.wire.errors import ApiError, ForbiddenError, InvalidRequestError, UnknownUrlError
from metering.ledger.entries import FIRST_ERROR

REFUSED_HANDSHAKE = 403
"""ASGI's status for a socket that is closed before it was accepted."""

PAGE = b"text/html"
PREFLIGHT = frozenset({"origin", "access-control-request-method"})
SENT_BACK = ("x-request-id", "request-id", "retry-after", "x-helexa-advice", "x-helexa-ignored")
Headers = Sequence[tuple[bytes, bytes]]
Application = Callable[[Any, Any, Any], Awaitable[None]]


class UnhandledRequests:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def refused(
        self,
        target: bytes,
        error: ApiError,
        status: int,
        *,
        headers: Headers = (),
        request_id: str = "",
    ) -> str:
        """The server has read no body. ``headers`` are empty where it could not read them."""
        request_id = request_id or new_request_id()
        call = self._open_call(request_id, target, headers)
        if headers and api_path_of(target) is not None:
            self._gateway.spawn(self._close_identified(call, headers, error, status))
        else:
            self._close(call, error, status)
        return request_id

    async def _close_identified(
        self, call: Call, headers: Headers, error: ApiError, status: int
    ) -> None:
        try:
            call.identify(await self._gateway.identifier.principal_of(headers))
        except ApiError as unknown:
            error.account, error.key = unknown.account, unknown.key
        self._close(call, error, status)

    def _close(self, call: Call, error: ApiError, status: int) -> None:
        call.fail(error)
        call.status = status
        call.close()

    def refused_at(self, scope: Any, error: ApiError, status: int) -> str:
        request_id: str = scope.get(REQUEST_ID) or new_request_id()
        target = scope["path"].encode("latin-1", "replace")
        self._close(self._open_call(request_id, target, scope["headers"]), error, status)
        return request_id

    def with_cors(self, application: Application) -> Application:
        config = self._gateway.config
        cors = _Cors(
            application,
            allow_origins=config.allowed_origins,
            allow_origin_regex=LOCAL_ORIGIN.pattern,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            allow_private_network=True,
            expose_headers=SENT_BACK,
        )
        cors.on_refused = self.refused_at
        return cors

    async def no_socket(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        error = UnknownUrlError(unknown_url("WebSocket", scope["path"]))
        self.refused_at(scope, error, REFUSED_HANDSHAKE)
        await send({"type": "websocket.close"})

    def recorded_where_refused(self, application: Application) -> Application:

        async def recorded(scope: Any, receive: Any, send: Any) -> None:
            if any(PAGE in value for name, value in scope["headers"] if name == b"accept"):
                await application(scope, receive, send)
                return
            scope = {**scope, REQUEST_ID: new_request_id()}

            async def watched(message: Any) -> None:
                if message.get("status", 0) >= FIRST_ERROR:
                    self._record(scope, message["status"])
                    headers = [*message["headers"], *request_id_headers(scope[REQUEST_ID])]
                    message = {**message, "headers": headers}
                await send(message)

            await application(scope, receive, watched)

        return recorded

    def _record(self, scope: Any, status: int) -> None:
        named = HTTPStatus(status)
        unnamed = NotedRefusal(code=named.name.lower(), message=f"{named.phrase}.")
        noted: NotedRefusal = scope.get(REFUSED, unnamed)
        error = ForbiddenError(noted.code, noted.message)
        error.status, error.account, error.key = status, noted.account, noted.key
        call = self._open_call(scope[REQUEST_ID], b"", scope["headers"])
        call.endpoint = noted.endpoint or call.endpoint
        self._close(call, error, status)

    def _open_call(self, request_id: str, target: bytes, headers: Headers) -> Call:
        self._gateway.ensure_started()
        return self._gateway.open_call(
            request_id=request_id, endpoint=endpoint_of(target), headers=headers
        )


class _Cors(CORSMiddleware):
    on_refused: Callable[[Any, ApiError, int], str]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = RequestHeaders(scope=scope)
        if scope["method"] != "OPTIONS" or not PREFLIGHT.issubset(headers.keys()):
            await super().__call__(scope, receive, send)
            return
        response = self.preflight_response(headers)
        if response.status_code != HTTPStatus.OK:
            error: ApiError = InvalidRequestError(f"{bytes(response.body).decode()}.", param=None)
            if not self.is_allowed_origin(headers["origin"]):
                error = ForbiddenError("origin_not_allowed", ORIGIN_NOT_ALLOWED)
                response.body = orjson.dumps(openai_errors.error_object(error))
                response.headers["content-length"] = str(len(response.body))
                response.headers["content-type"] = "application/json"
            request_id = self.on_refused(scope, error, response.status_code)
            response.raw_headers.extend(request_id_headers(request_id))
        await response(scope, receive, send)
