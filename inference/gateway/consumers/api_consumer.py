"""The HTTP side of every API request: reads the body, sends one response, detects a disconnect.

    first message ─▶ identify ─▶ body ─▶ handler task ─▶ an answer ─▶ respond | send frames
    http.disconnect ──────────────────────▶ cancels it

Channels' stock HTTP consumer waits for its handler before it reads the next message, so it never
sees a disconnect. Here the handler is a task of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, ClassVar, TypeVar
from urllib.parse import parse_qsl

from channels.consumer import AsyncConsumer
from channels.exceptions import StopConsumer

from inference.gateway.gateway import Gateway
from inference.gateway.request.admission import limit_headers
from inference.gateway.request.attempt import RunningRequest
from inference.gateway.request.identify import LOGIN, Login, cleaned, ensure_scope
from inference.gateway.request.outcome import Call
from inference.gateway.request.run import run_request
from inference.gateway.server.http_messages import (
    advice_headers,
    check_body_headers,
    ignored_headers,
    send_in_pieces,
    spooled_file,
)
from inference.gateway.server.paths import unknown_url, with_model
from inference.protocol.events import Event
from inference.protocol.generation import Request
from inference.request_ids import new_request_id
from inference.wire.dialect import RequestContext, request_id_headers, served_by_headers
from inference.wire.error_envelopes import ErrorDialect, error_headers, openai_errors
from inference.wire.errors import (
    ApiError,
    InternalError,
    MethodNotAllowedError,
    RequestTooLargeError,
    UnknownUrlError,
    shutting_down,
)
from inference.wire.unknown_fields import unknown_fields_ignored
from metering.ledger.entries import FINISHED, FIRST_ERROR
from metering.principal import Scope

logger = logging.getLogger(__name__)


Headers = list[tuple[bytes, bytes]]
Parsed = TypeVar("Parsed")
Answer = Callable[[Any, bytes], Coroutine[Any, Any, None]]
UNBUFFERED: Headers = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
"""Makes proxies forward a stream as it comes."""
HEAD = "HEAD"
"""Answered as GET is, without the body (RFC 9110, 9.3.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    name: str
    """The name in records and metrics."""
    answers: Mapping[str, Answer]
    """By HTTP method. Empty: there is no such URL."""
    errors: ErrorDialect = openai_errors
    scope: Scope | None = Scope.INFERENCE
    is_form: bool = False


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
    error_outcome: ClassVar[str] = FINISHED

    scope: dict[str, Any]
    call: Call

    def __init__(self, *, gateway: Gateway, endpoint: Endpoint) -> None:
        super().__init__()
        self.gateway = gateway
        self.endpoint = endpoint
        self.errors = endpoint.errors
        self.request_id = new_request_id()
        self._body = bytearray()
        self._form: IO[bytes] | None = spooled_file() if endpoint.is_form else None
        self._handler: asyncio.Task[None] | None = None
        self._client_left = False
        self._response_started = False
        self._response_ended = False
        self._breaks_off = False
        self._is_open = False
        self._is_counted = False
        self._num_body_bytes = 0
        self._ignored_fields: list[str] = []

    async def parsed(self, parse: Callable[[bytes, RequestContext], Parsed], body: bytes) -> Parsed:
        """With the images of the request. Raises ``ApiError``."""
        return await self.gateway.images.parsed(partial(self._parsed, parse, body), len(body))

    def _parsed(self, parse: Callable[[bytes, RequestContext], Parsed], body: bytes) -> Parsed:
        if deployment := self.scope.get("deployment"):
            body = with_model(body, deployment)
        if not self.gateway.config.ignores_unknown_fields:
            return parse(body, self.context())
        with unknown_fields_ignored() as ignored:
            parsed = parse(body, self.context())
        self._ignored_fields = ignored
        return parsed

    def running(self, request: Request) -> AbstractAsyncContextManager[RunningRequest]:
        return run_request(self.gateway, self.call, request, abort=self.abort)

    async def last_event(self, request: Request) -> Event:
        """Raises ``ApiError``."""
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
        """Skips Channels' thread hop, which closes database connections: there are none here."""
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
            self._start(self._fail(error))
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
        num_bytes = sum(map(len, parts))
        await self.start_response(status, [*_body_headers(type_, num_bytes), *(headers or [])])
        await send_in_pieces(parts, self.send_body)

    async def begin_body(
        self, status: int, *, type_: bytes = b"", num_bytes: int | None = None
    ) -> None:
        """``num_bytes`` ``None``: unknown. A body that fails later cuts the connection."""
        self._breaks_off = True
        await self.start_response(status, _body_headers(type_, num_bytes))

    async def start_response(self, status: int, headers: Headers) -> None:
        self._response_started = True
        self.call.status = status
        headers = [
            *headers,
            *limit_headers(self.call.limit_state, self.errors),
            *ignored_headers(self._ignored_fields),
            *served_by_headers(self.call.served_by),
            *request_id_headers(self.request_id),
        ]
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

    @property
    def named(self) -> str:
        return str(self.scope["id"])

    def context(self) -> RequestContext:
        headers = self.scope["headers"]
        return RequestContext(
            headers={name.decode("latin-1"): value.decode("latin-1") for name, value in headers},
            always_include_usage=self.gateway.config.always_stream_usage,
        )

    async def _open(self) -> None:
        self._open_call()
        if self.endpoint.scope is not None:
            await self._identify(self.scope["headers"], self.endpoint.scope)
        self._check_before_body()
        self.gateway.bounds.open_request()
        self._is_counted = True

    def _open_call(self) -> None:
        self._is_open = True
        self.gateway.ensure_started()
        self.call = self.gateway.open_call(
            request_id=self.request_id,
            endpoint=self.endpoint.name,
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

    @property
    def _answer(self) -> Answer | None:
        answers, method = self.endpoint.answers, self.scope["method"]
        return answers.get(method) or (answers.get("GET") if method == HEAD else None)

    def _check_before_body(self) -> None:
        method = self.scope["method"]
        if not self.endpoint.answers:
            raise UnknownUrlError(unknown_url(method, self.scope["path"]))
        if self._answer is None:
            raise MethodNotAllowedError(method, ", ".join(self.endpoint.answers))
        if self.gateway.draining:
            raise shutting_down()
        check_body_headers(self.scope["headers"], self.gateway.config.max_body_bytes)

    async def _take_body(self, part: bytes) -> None:
        if self._num_body_bytes + len(part) > self.gateway.config.max_body_bytes:
            raise RequestTooLargeError(self.gateway.config.max_body_bytes)
        self.gateway.bounds.take_body(len(part))
        self._num_body_bytes += len(part)
        if self._form is None:
            self._body += part
        else:
            await asyncio.to_thread(self._form.write, part)

    async def _handle(self, body: bytes) -> None:
        self.call.capture_request(body)
        assert self._answer is not None, "another method was refused before its body"
        answering = self._answer(self, body)
        del body  # a large one is not kept while its answer is generated
        try:
            await answering
            self.call.outcome = FINISHED if self.call.status < FIRST_ERROR else self.error_outcome
        except ApiError as error:
            await self._fail(error)
        except asyncio.CancelledError:
            if self._client_left:
                raise
            await self._fail(shutting_down())
        except Exception:
            logger.exception("request %s failed", self.request_id)
            await self._fail(InternalError())

    async def _fail(self, error: ApiError) -> None:
        self.call.fail(error)
        await self.refuse(error)


def _body_headers(type_: bytes, num_bytes: int | None) -> Headers:
    length = [] if num_bytes is None else [(b"content-length", str(num_bytes).encode())]
    return [(b"content-type", type_ or b"application/json"), *length]
