"""Every connection of a client that Daphne has open: admitted, watched, counted until it closes.

    Port ─accept─▶ StreamChannel ─opened─▶ OpenClients ─▶ ClientConnections    served or refused
                        ▲                     │ every second
                        └──── close_overdue ──┘

Belongs to Twisted's reactor.
"""

from __future__ import annotations

import time
from typing import Any

from twisted.internet import reactor
from twisted.internet.tcp import Port

from inference.gateway.server.client_connections import ClientConnections
from inference.gateway.server.http_channel import ReadDeadline, ReadTimeouts, StreamChannel

ACCEPTS_A_TURN = 8
"""Twisted accepts a hundred at a time: more than the reserve of file descriptors may be."""
BACKLOG = 1024
SWEEP_S = 1.0
REFUSED_TIMEOUTS = ReadTimeouts(head_s=2.0, body_s=2.0, idle_s=2.0)


class BoundedPort(Port):  # type: ignore[misc]
    backlog = BACKLOG

    @property
    def numberAccepts(self) -> int:  # noqa: N802
        return ACCEPTS_A_TURN

    @numberAccepts.setter
    def numberAccepts(self, _wanted: int) -> None:  # noqa: N802
        """Twisted adapts it to what comes."""


class OpenClients:
    def __init__(self, connections: ClientConnections, timeouts: ReadTimeouts) -> None:
        self._connections = connections
        self._timeouts = timeouts
        self._channels: dict[Any, tuple[str, StreamChannel]] = {}
        self._ports: list[Port] = []
        self._is_accepting = True

    def listen(self, port: int, host: str, factory: Any) -> None:
        listening = BoundedPort(port, factory, BACKLOG, host, reactor)
        listening.startListening()
        self._ports.append(listening)
        reactor.callLater(SWEEP_S, self._sweep)

    def stop_listening(self) -> None:
        for port in self._ports:
            port.stopListening()
        self._ports.clear()

    def opened(self, channel: StreamChannel) -> None:
        transport = channel.transport
        host, descriptor = str(transport.getPeer().host), transport.fileno()
        self._channels[transport] = host, channel
        channel.refusal = self._connections.admit(host, descriptor)
        timeouts = self._timeouts if channel.refusal is None else REFUSED_TIMEOUTS
        channel.deadline = ReadDeadline(timeouts, time.monotonic())
        if self._connections.is_too_many(descriptor) and self._is_accepting:
            self._is_accepting = False
            for port in self._ports:
                port.stopReading()

    def closed(self, transport: Any) -> None:
        host, _ = self._channels.pop(transport, (None, None))
        if host is None:
            return
        self._connections.release(host)
        if not self._is_accepting:
            self._is_accepting = True
            for port in self._ports:
                port.startReading()

    def _sweep(self) -> None:
        now_s = time.monotonic()
        for _, channel in list(self._channels.values()):
            if channel.deadline.is_overdue(now_s):
                channel.close_overdue()
        reactor.callLater(SWEEP_S, self._sweep)
