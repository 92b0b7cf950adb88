"""The HTTP side of every API request: body in, one response out, whoever leaves is noticed.

    http.request* ─▶ body ─▶ handler task ─▶ answer() ─▶ respond | send frames
    http.disconnect ─────────▶ cancels it

Channels' stock HTTP consumer waits for its handler before it looks at the next message, so it never
sees a disconnect. Here the handler is a task of its own and messages go on being received.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any, ClassVar

from channels.consumer import AsyncConsumer
from channels.exceptions import StopConsumer

from inference.gateway.advice import advice_headers
from inference.gateway.authorization import authorize
from inference.gateway.gateway import Gateway
from inference.wire import openai_errors
from inference.wire.dialect import ErrorDialect, RequestContext
from inference.wire.errors import (
    ApiError,
    InternalError,
    MethodNotAllowedError,
    RequestTooLargeError,
    UnknownUrlError,
    error_headers,
    shutting_down,
)

logger = logging.getLogger(__name__)

Headers = list[tuple[bytes, bytes]]

JSON_TYPE = (b"content-type", b"application/json")
REQUEST_ID_HEADERS = (b"x-request-id", b"request-id")
"""OpenAI's clients look for the first, Anthropic's for the second."""


class AbortableConsumer(AsyncConsumer):  # type: ignore[misc]
    """What goes on with one client, until it ends or is given up."""

    def __init__(self) -> None:
        self._exchange: asyncio.Task[None] | None = None
        self._given_up = False

    def stop_working(self) -> None:
        """Called at the end, whatever that was."""
        raise NotImplementedError

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._exchange = asyncio.current_task()
        try:
            await super().__call__(scope, receive, send)
        except asyncio.CancelledError:
            if not self._given_up:
                raise
        finally:
            self.stop_working()

    def abort(self) -> None:
        """Gives the client up; servers close a connection whose application has ended early."""
        self._given_up = True
        if self._exchange is not None:
            self._exchange.cancel()


class ApiConsumer(AbortableConsumer):
    """One request. Subclasses implement ``answer`` and raise ``ApiError`` for what they refuse."""

    method: ClassVar[str] = "GET"
    other_methods: ClassVar[tuple[str, ...]] = ()
    """What is answered at the same path beside ``method``."""
    needs_key: ClassVar[bool] = True

    scope: dict[str, Any]

    def __init__(self, *, gateway: Gateway, errors: ErrorDialect = openai_errors) -> None:
        """``errors``: how this request's client is told what went wrong."""
        super().__init__()
        self.gateway = gateway
        self.errors = errors
        self.request_id = uuid.uuid4().hex
        self._body = bytearray()
        self._handler: asyncio.Task[None] | None = None
        self._client_left = False
        self._response_started = False
        self._response_ended = False

    async def answer(self, body: bytes) -> None:
        raise NotImplementedError

    def stop_working(self) -> None:
        if self._handler is not None and not self._handler.done():
            self._handler.cancel()

    def abort(self) -> None:
        logger.warning("request %s: the client does not read its answer", self.request_id)
        self._client_left = True
        super().abort()

    async def dispatch(self, message: dict[str, Any]) -> None:
        """Without Channels' thread hop to close database connections: there are none here."""
        if message["type"] == "http.request":
            await self.http_request(message)
        elif message["type"] == "http.disconnect":
            await self.http_disconnect()

    async def http_request(self, message: dict[str, Any]) -> None:
        if self._handler is not None:
            return
        try:
            self._check_before_body()
            self._body += message.get("body", b"")
            if len(self._body) > self.gateway.config.max_body_bytes:
                raise RequestTooLargeError(self.gateway.config.max_body_bytes)
        except ApiError as error:
            self._handler = self.gateway.spawn(self.refuse(error))
            return
        if not message.get("more_body", False):
            self._handler = self.gateway.spawn(self._handle(bytes(self._body)))

    async def http_disconnect(self) -> None:
        """Servers send this after a finished response too."""
        self._client_left = not self._response_ended
        if self._handler is not None and not self._handler.done():
            if self._client_left:
                self._handler.cancel()
            await asyncio.wait([self._handler])
        raise StopConsumer

    async def respond(
        self, status: int, body: bytes, headers: Headers | None = None, *, type_: bytes = b""
    ) -> None:
        content_type = (b"content-type", type_) if type_ else JSON_TYPE
        length = (b"content-length", str(len(body)).encode())
        await self.start_response(status, [content_type, length, *(headers or [])])
        await self.send_body(body, last=True)

    async def start_response(self, status: int, headers: Headers) -> None:
        self._response_started = True
        request_id = [(name, self.request_id.encode()) for name in REQUEST_ID_HEADERS]
        await self.send(
            {"type": "http.response.start", "status": status, "headers": [*headers, *request_id]}
        )

    async def send_body(self, body: bytes, *, last: bool = False) -> None:
        self._response_ended = self._response_ended or last
        await self.send({"type": "http.response.body", "body": body, "more_body": not last})

    async def refuse(self, error: ApiError) -> None:
        """As a status where nothing has been sent yet, else as the stream's last event."""
        if self._response_ended:
            return
        if self._response_started:
            frame = self.errors.error_frame(error, request_id=self.request_id)
            await self.send_body(frame, last=True)
        else:
            body = self.errors.error_body(error, request_id=self.request_id)
            advice = advice_headers(self.context().headers.get("user-agent", ""), error)
            await self.respond(error.status, body, [*error_headers(error), *advice])

    def context(self) -> RequestContext:
        headers = self.scope["headers"]
        return RequestContext(
            headers={name.decode("latin-1"): value.decode("latin-1") for name, value in headers},
            always_include_usage=self.gateway.config.always_stream_usage,
        )

    def _check_before_body(self) -> None:
        if self._body:
            return
        if self.needs_key:
            authorize(self.gateway.config, self.scope.get("client"), self.scope["headers"])
        allowed = (self.method, *self.other_methods)
        if self.scope["method"] not in allowed:
            raise MethodNotAllowedError(self.scope["method"], ", ".join(allowed))
        if self.gateway.draining:
            raise shutting_down()
        declared = dict(self.scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self.gateway.config.max_body_bytes:
            raise RequestTooLargeError(self.gateway.config.max_body_bytes)

    async def _handle(self, body: bytes) -> None:
        try:
            self.gateway.ensure_started()
            await self.answer(body)
        except ApiError as error:
            await self.refuse(error)
        except asyncio.CancelledError:
            if self._client_left:
                raise
            await self.refuse(shutting_down())
        except Exception:
            logger.exception("request %s failed", self.request_id)
            await self.refuse(InternalError())


class UnknownUrlConsumer(ApiConsumer):
    """What is under /v1 and nowhere else."""

    def _check_before_body(self) -> None:
        raise UnknownUrlError(f"There is no {self.scope['method']} {self.scope['path']} here.")
