"""Daphne with back-pressure, limits on clients' bodies and speed, and an orderly stop.

Daphne's own server buffers whatever an application sends and reads a body of any size before it
calls one. Must not know the application.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import daphne.server  # before anything of Twisted: it installs the reactor that runs on asyncio
from daphne.endpoints import build_endpoint_description_strings
from daphne.http_protocol import HTTPFactory, WebRequest
from daphne.ws_protocol import WebSocketFactory, WebSocketProtocol
from twisted.internet import reactor
from twisted.internet.error import CannotListenError
from twisted.logger import globalLogBeginner

from inference.gateway.request.identify import REQUEST_ID
from inference.gateway.server.clients import OpenClients, Reading, StreamChannel, write_at_once
from inference.gateway.server.http_messages import spooled_file
from inference.request_ids import new_request_id
from inference.wire.dialect import REQUEST_ID_HEADERS, request_id_headers
from inference.wire.error_envelopes import ErrorDialect
from inference.wire.errors import ApiError, InternalError, InvalidHttpError, RequestTooLargeError

logger = logging.getLogger(__name__)

CheckHeaders = Callable[[bytes, list[tuple[bytes, bytes]]], Awaitable[None]]

READ_BUFFER_BYTES = 256 * 1024
SMALL_BODY_BYTES = 64 * 1024
PING_INTERVAL_S = 20.0
PING_TIMEOUT_S = 20.0


PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
"""Twisted's own list ends before 429."""


class _Producer:
    """Twisted calls it as the producer of its own output."""

    writable: asyncio.Event

    def begin_writing(self) -> None:
        self.writable = asyncio.Event()
        self.writable.set()

    def pauseProducing(self) -> None:  # noqa: N802
        self.writable.clear()

    def resumeProducing(self) -> None:  # noqa: N802
        self.writable.set()

    def stopProducing(self) -> None:  # noqa: N802
        self.writable.set()


class StreamRequest(_Producer, WebRequest):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # The application reads forms, within its limits.
        super().__init__(*args, parsePOSTFormSubmission=False, **kwargs)
        self.begin_writing()
        self._num_body_bytes = 0
        self._refused = False
        self._has_begun = False
        """The application has the request, and decides on refusals."""
        self._checking: asyncio.Task[None] | None = None

    def gotLength(self, length: int | None) -> None:  # noqa: N802
        # Twisted opens a file for each body without a length, however small.
        self.content = spooled_file()
        if self._refused:
            return
        if length is not None and length > self.server.max_body_bytes:
            self.refuse(RequestTooLargeError(self.server.max_body_bytes))
        elif length is None or length > SMALL_BODY_BYTES:
            self._checking = asyncio.ensure_future(self._check_sender())

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802
        self._num_body_bytes += len(data)
        if not self._refused and self._num_body_bytes > self.server.max_body_bytes:
            self.refuse(RequestTooLargeError(self.server.max_body_bytes))
        if not self._refused:
            super().handleContentChunk(data)

    def process(self) -> Any:
        self._has_begun = True
        if self._refused:
            self.channel.loseConnection()
            return None
        if not self._becomes_a_socket():
            self.registerProducer(self, True)
        return super().process()

    def setResponseCode(self, code: int, message: bytes | None = None) -> None:  # noqa: N802
        super().setResponseCode(code, message or PHRASES.get(code))

    def _becomes_a_socket(self) -> bool:
        upgrades = self.requestHeaders.getRawHeaders(b"Upgrade") or [b""]
        return bool(upgrades[0].lower() == b"websocket")

    def resumeProducing(self) -> None:  # noqa: N802
        """Else the channel would stay stopped and never see the client leave."""
        super().resumeProducing()
        self.channel._networkProducer.resumeProducing()

    def finish(self) -> None:
        if self.producer is not None:
            self.unregisterProducer()
        super().finish()

    def connectionLost(self, reason: Any) -> None:  # noqa: N802
        self.writable.set()
        super().connectionLost(reason)

    def application_ended(self) -> None:
        """The client of an incomplete response would wait for more."""
        if self._response_started and not self.finished and self.channel is not None:
            self.channel.forceAbortClient()

    async def _check_sender(self) -> None:
        if self._has_begun:  # a body of unknown length that was small
            return
        error: ApiError | None = None
        network = self.channel._networkProducer
        network.pauseProducing()
        self.channel.deadline.begin(Reading.ANSWERING)
        try:
            await self.server.check_headers(self.channel._path, self._header_pairs())
        except ApiError as refused:
            error = refused
        finally:
            if self.channel is not None:
                network.resumeProducing()
                if not (self._refused or self._has_begun):
                    self.channel.deadline.begin(Reading.BODY, time.monotonic())
        if self.channel is None or self._refused or self._has_begun:
            return
        if error is not None:
            self.refuse(error)

    def _header_pairs(self) -> list[tuple[bytes, bytes]]:
        return [
            (name.lower(), value)
            for name, values in self.requestHeaders.getAllRawHeaders()
            for value in values
        ]

    def basic_error(self, status: int, status_text: bytes, body: str) -> None:
        is_theirs = status < HTTPStatus.INTERNAL_SERVER_ERROR
        error = InvalidHttpError(f"{body}.") if is_theirs else InternalError()
        request_id = self.server.record_refusal(
            self.uri, error, status, headers=self._header_pairs()
        )
        content = self.server.errors_of(self.uri).error_body(error, request_id=request_id)
        headers = [
            *request_id_headers(request_id),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
        ]
        self.handle_reply({"type": "http.response.start", "status": status, "headers": headers})
        self.handle_reply({"type": "http.response.body", "body": content})

    def refuse(self, error: ApiError) -> None:
        self._refused = True
        self.channel.refuse(error, self.channel._path, self._header_pairs())


class StreamFactory(HTTPFactory):  # type: ignore[misc]
    protocol = StreamChannel
    timeOut = None  # noqa: N815 - of Twisted's, which any byte resets

    def buildProtocol(self, addr: Any) -> Any:  # noqa: N802
        protocol = super().buildProtocol(addr)
        protocol.requestFactory = StreamRequest
        return protocol


class DaphneServer(daphne.server.Server):  # type: ignore[misc]
    """``check_headers`` raises the ``ApiError`` of a large body that is refused by its path and
    headers. ``on_refused`` gets each refusal that the application does not see, and returns the
    request's id."""

    def __init__(
        self,
        application: Any,
        *,
        host: str,
        port: int,
        max_body_bytes: int,
        errors_of: Callable[[bytes], ErrorDialect],
        check_headers: CheckHeaders,
        on_refused: Callable[..., str],
        clients: OpenClients,
    ) -> None:
        super().__init__(
            application,
            endpoints=build_endpoint_description_strings(host=host, port=port),
            signal_handlers=False,
            request_buffer_size=READ_BUFFER_BYTES,
            server_name="helexa",
        )
        self.max_body_bytes = max_body_bytes
        self.errors_of = errors_of
        self.check_headers = check_headers
        self.record_refusal = on_refused
        self.clients = clients
        self._host, self._port = host, port

    @property
    def event_loop(self) -> asyncio.AbstractEventLoop:
        loop: asyncio.AbstractEventLoop = reactor._asyncioEventloop
        return loop

    def serve(self) -> str | None:
        self.connections: dict[Any, Any] = {}
        self.http_factory = StreamFactory(self)
        self.ws_factory = self._websocket_factory()
        globalLogBeginner.beginLoggingTo(
            [lambda _: None], redirectStandardIO=False, discardBuffer=True
        )
        asyncio.set_event_loop(self.event_loop)
        try:
            self.clients.listen(self._port, self._host, self.http_factory)
        except CannotListenError as error:
            return str(error)
        reactor.callLater(1, self.application_checker)
        reactor.addSystemEventTrigger("before", "shutdown", self.kill_all_applications)
        reactor.run(installSignalHandlers=False)
        return None

    def _websocket_factory(self) -> Any:
        factory = WebSocketFactory(self, server=self.server_name)
        factory.protocol = StreamSocket
        factory.setProtocolOptions(
            maxMessagePayloadSize=self.max_body_bytes,
            failByDrop=False,
            allowNullOrigin=True,  # the application decides on origins
            autoPingInterval=PING_INTERVAL_S,
            autoPingTimeout=PING_TIMEOUT_S,
        )
        return factory

    def close(self) -> None:
        reactor.stop()

    def create_application(self, protocol: Any, scope: dict[str, Any]) -> Any:
        if isinstance(protocol, StreamSocket):
            scope[REQUEST_ID] = protocol.request_id
        queue = super().create_application(protocol, scope)
        if queue is not None:
            running = self.connections[protocol]["application_instance"]
            running.add_done_callback(lambda _: protocol.application_ended())
        return queue

    async def handle_reply(self, protocol: Any, message: dict[str, Any]) -> None:
        await protocol.writable.wait()
        await super().handle_reply(protocol, message)


class StreamSocket(_Producer, WebSocketProtocol):  # type: ignore[misc]
    """One WebSocket. It produces in place of the HTTP channel that the connection began with."""

    def connectionMade(self) -> None:  # noqa: N802
        self.request_id = new_request_id()
        self.begin_writing()
        self.transport.unregisterProducer()
        self.transport.registerProducer(self, True)
        super().connectionMade()

    def connectionLost(self, reason: Any) -> None:  # noqa: N802
        super().connectionLost(reason)
        self.factory.server_class.clients.closed(self.transport)

    def sendData(self, data: bytes, sync: bool = False, chopsize: int | None = None) -> None:  # noqa: N802
        if sync or chopsize or self.send_queue:
            super().sendData(data, sync, chopsize)
        else:
            write_at_once(self.transport, data)

    def onClose(self, wasClean: bool, code: int, reason: str) -> None:  # noqa: N802, N803
        """Also called where the handshake never reached an application."""
        self.writable.set()
        if hasattr(self, "server"):
            super().onClose(wasClean, code, reason)

    def failHandshake(  # noqa: N802
        self,
        reason: str,
        code: int = 400,
        responseHeaders: Any = None,  # noqa: N803
    ) -> None:
        """Also called where the application has refused and recorded it by the id of its scope."""
        headers = list(responseHeaders or ())
        if not hasattr(self, "server"):
            self.factory.server_class.record_refusal(
                self._target(),
                InvalidHttpError(f"{reason}."),
                code,
                request_id=self.request_id,
            )
        headers += [(name.decode(), self.request_id) for name in REQUEST_ID_HEADERS]
        super().failHandshake(reason, code, headers)

    def _target(self) -> bytes:
        words: list[str] = getattr(self, "http_status_line", "").split()
        return words[1].encode() if len(words) > 1 else b"/"

    def application_ended(self) -> None:
        if self.state != self.STATE_CLOSED:
            self.dropConnection(abort=True)
