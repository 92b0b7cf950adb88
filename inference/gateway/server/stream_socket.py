"""The WebSocket connection of a client: back-pressure, and records of what the application does not
get to see, handshakes that are none and messages that are too large. Must not know the application.
"""

from __future__ import annotations

import asyncio
from typing import Any

import daphne.server  # noqa: F401 - before anything of Twisted: it installs the reactor
from daphne.ws_protocol import WebSocketProtocol

from inference.gateway.server.bodies import MESSAGE_TOO_LARGE
from inference.gateway.server.http_channel import write_at_once
from inference.request_ids import new_request_id
from inference.wire.dialect import REQUEST_ID_HEADERS
from inference.wire.errors import InvalidHttpError


class StreamSocket(WebSocketProtocol):  # type: ignore[misc]
    """One WebSocket. Twisted calls it as the producer of what it sends, in the place of the HTTP
    channel that the connection began with."""

    def connectionMade(self) -> None:  # noqa: N802
        self.request_id = new_request_id()
        """The handshake's, where it is refused."""
        self.writable = asyncio.Event()
        self.writable.set()
        self.transport.unregisterProducer()
        self.transport.registerProducer(self, True)
        super().connectionMade()

    def pauseProducing(self) -> None:  # noqa: N802
        self.writable.clear()

    def resumeProducing(self) -> None:  # noqa: N802
        self.writable.set()

    def stopProducing(self) -> None:  # noqa: N802
        self.writable.set()

    def connectionLost(self, reason: Any) -> None:  # noqa: N802
        super().connectionLost(reason)
        self.factory.server_class.clients.closed(self.transport)

    def sendData(self, data: bytes, sync: bool = False, chopsize: int | None = None) -> None:  # noqa: N802
        """Sends a frame as the HTTP channel sends a part of a stream. Autobahn's own queue has what
        it still sends in pieces, which goes first."""
        if sync or chopsize or self.send_queue:
            super().sendData(data, sync, chopsize)
        else:
            write_at_once(self.transport, data)

    def onClose(self, wasClean: bool, code: int, reason: str) -> None:  # noqa: N802, N803
        """Wakes a writer that waits. Also called where the handshake never came to an
        application."""
        self.writable.set()
        if hasattr(self, "server"):
            super().onClose(wasClean, code, reason)

    def failHandshake(  # noqa: N802
        self,
        reason: str,
        code: int = 400,
        responseHeaders: Any = None,  # noqa: N803
    ) -> None:
        """Also called where the application has refused, which has recorded it then by the id of
        its scope."""
        headers = list(responseHeaders or ())
        if not hasattr(self, "server"):
            self.factory.server_class.record_refusal(
                self._target(), InvalidHttpError(f"{reason}."), code, self.request_id
            )
        headers += [(name.decode(), self.request_id) for name in REQUEST_ID_HEADERS]
        super().failHandshake(reason, code, headers)

    def _target(self) -> bytes:
        words: list[str] = getattr(self, "http_status_line", "").split()
        return words[1].encode() if len(words) > 1 else b"/"

    def _max_message_size_exceeded(self, *sizes_and_reason: Any) -> None:
        """Autobahn closes the socket, and does not read such a message."""
        if not self.failedByMe:
            self.application_queue.put_nowait({"type": MESSAGE_TOO_LARGE})
        super()._max_message_size_exceeded(*sizes_and_reason)

    def application_ended(self) -> None:
        if self.state != self.STATE_CLOSED:
            self.dropConnection(abort=True)
