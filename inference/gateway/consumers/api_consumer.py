"""The HTTP side of every API request: reads the body, sends one response, detects a disconnect.

    first message ─▶ identify ─▶ body ─▶ handler task ─▶ answer() ─▶ respond | send frames
    http.disconnect ──────────────────────▶ cancels it

Channels' stock HTTP consumer waits for its handler before it reads the next message, so it never
sees a disconnect. Here the handler is a task of its own and messages are still received, by
``AbortableConsumer``, which WebSockets share.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache, partial
from typing import Any, ClassVar, TypeVar
from urllib.parse import parse_qsl, quote

from channels.consumer import AsyncConsumer
from channels.exceptions import StopConsumer

from inference.gateway.consumers.context_advice import advice_headers
from inference.gateway.gateway import Gateway
from inference.gateway.request.admission import limit_headers
from inference.gateway.request.attempt import RunningRequest
from inference.gateway.request.identify import LOGIN, Login, cleaned, ensure_scope
from inference.gateway.request.outcome import Call
from inference.gateway.request.run import run_request
from inference.gateway.server.bodies import check_body_headers, parse_aside, send_in_pieces
from inference.gateway.server.paths import UNKNOWN_ENDPOINT, unknown_url, with_model
from inference.protocol.events import Event
from inference.protocol.generation import Request
from inference.request_ids import new_request_id
from inference.wire.common.unknown_fields import unknown_fields_ignored
from inference.wire.dialect import (
    ErrorDialect,
    RequestContext,
    error_headers,
    request_id_headers,
    served_by_headers,
)
from inference.wire.errors import (
    ApiError,
    InternalError,
    MethodNotAllowedError,
    RequestTooLargeError,
    UnknownUrlError,
    shutting_down,
)
from inference.wire.openai import errors as openai_errors
from inference.wire.openapi import document_bytes
from metering.ledger.entries import FINISHED, FIRST_ERROR
from metering.principal import Scope

logger = logging.getLogger(__name__)


Headers = list[tuple[bytes, bytes]]
Parsed = TypeVar("Parsed")
JSON_TYPE = (b"content-type", b"application/json")
UNBUFFERED: Headers = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
"""Makes proxies forward a stream as it comes."""
HEAD = "HEAD"
"""Answered as GET is, without the body (RFC 9110, 9.3.2)."""


class AbortableConsumer(AsyncConsumer):  # type: ignore[misc]
    def __init__(self) -> None:
        self._exchange: asyncio.Task[None] | None = None
        self._is_aborted = False

    def stop_working(self) -> None:
        raise NotImplementedError

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._exchange = asyncio.current_task()
        try:
            # Channels' own loop makes a task of each receive, for layers that we have none of.
            self.scope, self.base_send = scope, send
            while True:
                await self.dispatch(await receive())
        except StopConsumer:
            pass
        except asyncio.CancelledError:
            if not self._is_aborted:
                raise
        finally:
            self.stop_working()

    def abort(self) -> None:
        """Disconnects the client: servers close a connection whose application has ended early."""
        self._is_aborted = True
        if self._exchange is not None:
            self._exchange.cancel()


class ApiConsumer(AbortableConsumer):
    method: ClassVar[str] = "GET"
    other_methods: ClassVar[tuple[str, ...]] = ()
    scope_needed: ClassVar[Scope | None] = Scope.INFERENCE
    error_outcome: ClassVar[str] = FINISHED
    """The outcome of an answer with an error's status that is no refusal."""
    endpoint: ClassVar[str] = ""
    errors: ErrorDialect = openai_errors

    scope: dict[str, Any]

    call: Call

    def __init__(
        self, *, gateway: Gateway, errors: ErrorDialect | None = None, endpoint: str = ""
    ) -> None:
        super().__init__()
        self.gateway = gateway
        self.errors = errors or self.errors
        self.request_id = new_request_id()
        self._endpoint = endpoint or self.endpoint
        self._body = bytearray()
        self._handler: asyncio.Task[None] | None = None
        self._client_left = False
        self._response_started = False
        self._response_ended = False
        self._breaks_off = False
        self._is_open = False
        self._is_counted = False
        self._num_body_bytes = 0
        self._ignored_fields: list[str] = []

    async def answer(self, body: bytes) -> None:
        raise NotImplementedError

    async def parsed(self, parse: Callable[[bytes, RequestContext], Parsed], body: bytes) -> Parsed:
        """Raises ``ApiError``."""
        return await parse_aside(partial(self._parsed, parse, body), len(body))

    def _parsed(self, parse: Callable[[bytes, RequestContext], Parsed], body: bytes) -> Parsed:
        if deployment := self.scope.get("deployment"):
            body = with_model(body, deployment)
        if not self.gateway.config.ignores_unknown_fields:
            return parse(body, self.context())
        with unknown_fields_ignored() as ignored:
            parsed = parse(body, self.context())
        self._ignored_fields = ignored
        return parsed

    async def read(self, parse: Callable[[bytes, RequestContext], Parsed], body: bytes) -> Parsed:
        """Raises ``ApiError``."""
        return await self.gateway.images.parsed(partial(self._parsed, parse, body), len(body))

    def running(self, request: Request) -> AbstractAsyncContextManager[RunningRequest]:
        return run_request(self.gateway, self.call, request, abort=self.abort)

    async def last_event(self, request: Request) -> Event:
        """Returns the end of a request that is answered at once. Raises ``ApiError``."""
        async with self.running(request) as stream:
            *_, last = await stream.next_events()
        return last

    def stop_working(self) -> None:
        if self._handler is not None and not self._handler.done():
            self._handler.cancel()
        if self._is_counted:
            self.gateway.bounds.close_request(self._num_body_bytes)
        if self._is_open and self._handler is None:
            self.call.close()  # the client left before its body was complete
        self._handler = None  # breaks a cycle: a cancelled task's traceback refers to the consumer

    def abort(self) -> None:
        if not self._response_started:
            return  # the client could read nothing yet, so it gets the error as its answer
        logger.warning("request %s: the client does not read its answer", self.request_id)
        self._client_left = True
        super().abort()

    async def dispatch(self, message: dict[str, Any]) -> None:
        """Dispatches a message without Channels' thread hop to close database connections: there
        are none here."""
        if message["type"] == "http.request":
            await self.http_request(message)
        elif message["type"] == "http.disconnect":
            await self.http_disconnect()

    async def http_request(self, message: dict[str, Any]) -> None:
        if self._handler is not None:
            return
        try:
            if not self._is_open:
                await self._open()
            await self._take_body(message.get("body", b""))
        except ApiError as error:
            self.call.fail(error)
            self._start(self.refuse(error))
            return
        if not message.get("more_body", False):
            body, self._body = bytes(self._body), bytearray()
            self._start(self._handle(body))

    def _start(self, handler: Coroutine[Any, Any, None]) -> None:
        self._handler = self.gateway.spawn(handler)
        self._handler.add_done_callback(lambda _: self.call.close())

    async def http_disconnect(self) -> None:
        """Servers send this after a finished response too, or before anything else."""
        if not self._is_open:
            self._open_call()
        self._client_left = not self._response_ended
        if self._handler is not None and not self._handler.done():
            if self._client_left:
                self._handler.cancel()
            await asyncio.wait([self._handler])
        raise StopConsumer

    async def respond(
        self,
        status: int,
        body: bytes | Sequence[bytes],
        headers: Headers | None = None,
        *,
        type_: bytes = b"",
    ) -> None:
        parts = [body] if isinstance(body, bytes) else body
        length = (b"content-length", str(sum(map(len, parts))).encode())
        await self.start_response(status, [_content_type(type_), length, *(headers or [])])
        await send_in_pieces(parts, self.send_body)

    async def begin_body(
        self, status: int, *, type_: bytes = b"", num_bytes: int | None = None
    ) -> None:
        """Starts a body of ``num_bytes``; ``None``: of unknown length. Where it fails later, the
        connection is cut."""
        self._breaks_off = True
        length = [] if num_bytes is None else [(b"content-length", str(num_bytes).encode())]
        await self.start_response(status, [_content_type(type_), *length])

    async def start_response(self, status: int, headers: Headers) -> None:
        self._response_started = True
        self.call.status = status
        request_id = request_id_headers(self.request_id)
        limits = limit_headers(self.call.limit_state, self.errors)
        ignored = ignored_headers(self._ignored_fields) if self._ignored_fields else []
        served_by = served_by_headers(self.call.served_by)
        headers = [*headers, *limits, *ignored, *served_by, *request_id]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def send_body(self, body: bytes, *, last: bool = False) -> None:
        self._response_ended = self._response_ended or last
        self.call.capture_answer(body)
        if self.scope["method"] == HEAD:
            body = b""
        await self.send({"type": "http.response.body", "body": body, "more_body": not last})

    async def refuse(self, error: ApiError) -> None:
        if self._response_ended:
            return
        if self._breaks_off:
            logger.warning("request %s breaks off: %s", self.request_id, error.message)
            super().abort()
        elif self._response_started:
            frame = self.errors.error_frame(error, request_id=self.request_id)
            await self.send_body(frame, last=True)
        else:
            body = self.errors.error_body(error, request_id=self.request_id)
            advice = advice_headers(self.call.client, error)
            await self.respond(error.status, body, [*error_headers(error), *advice])

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.scope["query_string"].decode("latin-1")))

    def context(self) -> RequestContext:
        headers = self.scope["headers"]
        return RequestContext(
            headers={name.decode("latin-1"): value.decode("latin-1") for name, value in headers},
            always_include_usage=self.gateway.config.always_stream_usage,
        )

    async def _open(self) -> None:
        self._open_call()
        if self.scope_needed is not None:
            await self._identify(self.scope["headers"], self.scope_needed)
        self._check_before_body()
        self.gateway.bounds.open_request()
        self._is_counted = True

    def _open_call(self) -> None:
        self._is_open = True
        self.gateway.ensure_started()
        self.call = self.gateway.open_call(
            request_id=self.request_id,
            endpoint=self._endpoint,
            headers=self.scope["headers"],
        )

    async def _identify(self, headers: Headers, scope_needed: Scope) -> None:
        login: Login | None = self.scope.get(LOGIN)
        if login is not None:
            principal = login.known()
        else:
            principal = await self.gateway.identifier.principal_of(headers)
        self.call.identify(principal, headers)
        if login is not None:
            self.call.end_user = cleaned(login.username)
        ensure_scope(principal, scope_needed)

    def _check_before_body(self) -> None:
        allowed, method = (self.method, *self.other_methods), self.scope["method"]
        if method not in allowed and not (method == HEAD and "GET" in allowed):
            raise MethodNotAllowedError(method, ", ".join(allowed))
        if self.gateway.draining:
            raise shutting_down()
        check_body_headers(self.scope["headers"], self.gateway.config.max_body_bytes)

    async def _take_body(self, part: bytes) -> None:
        if self._num_body_bytes + len(part) > self.gateway.config.max_body_bytes:
            raise RequestTooLargeError(self.gateway.config.max_body_bytes)
        self.gateway.bounds.take_body(len(part))
        self._num_body_bytes += len(part)
        await self.keep_body(part)

    async def keep_body(self, part: bytes) -> None:
        self._body += part

    async def _handle(self, body: bytes) -> None:
        self.call.capture_request(body)
        answering = self.answer(body)
        del body  # a large one is not kept while its answer is generated
        try:
            await answering
            self.call.outcome = FINISHED if self.call.status < FIRST_ERROR else self.error_outcome
        except ApiError as error:
            self.call.fail(error)
            await self.refuse(error)
        except asyncio.CancelledError:
            if self._client_left:
                raise
            self.call.fail(shutting_down())
            await self.refuse(shutting_down())
        except Exception:
            logger.exception("request %s failed", self.request_id)
            self.call.fail(InternalError())
            await self.refuse(InternalError())


def _content_type(type_: bytes) -> tuple[bytes, bytes]:
    return (b"content-type", type_) if type_ else JSON_TYPE


class UnknownUrlConsumer(ApiConsumer):
    scope_needed = None
    endpoint = UNKNOWN_ENDPOINT

    def _check_before_body(self) -> None:
        raise UnknownUrlError(unknown_url(self.scope["method"], self.scope["path"]))


HEADER = b"x-helexa-ignored"
MAX_NAMED = 32
MAX_NAME_CHARS = 128
SHOWN_AS_THEY_ARE = "[]"


def ignored_headers(paths: Sequence[str]) -> list[tuple[bytes, bytes]]:
    """Names are the client's own text: characters that a header cannot carry are percent-encoded,
    and of many the last is a count of the others."""
    if not paths:
        return []
    named = [
        quote(path[:MAX_NAME_CHARS], safe=SHOWN_AS_THEY_ARE, errors="replace")
        for path in paths[:MAX_NAMED]
    ]
    if len(paths) > MAX_NAMED:
        named.append(f"and {len(paths) - MAX_NAMED} more")
    return [(HEADER, ", ".join(named).encode("ascii"))]


class OpenApiConsumer(ApiConsumer):
    endpoint = "/openapi.json"
    scope_needed = None

    async def answer(self, body: bytes) -> None:
        await self.respond(200, _document())


_document = cache(document_bytes)
