"""Daphne's open client connections: admits, watches and counts them.

    Port ─accept─▶ StreamChannel ─opened─▶ OpenClients ─▶ ClientConnections    served or refused
                        ▲                     │ every second
                        └──── close_overdue ──┘

Loopback and trusted proxies are not counted by address: many clients may be behind them. Belongs to
Twisted's reactor.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import daphne.server  # noqa: F401 -- before anything of Twisted: it installs asyncio's reactor
from twisted.internet import reactor
from twisted.internet.tcp import Port

from helexa_site.web.client_address import client_address, counted_address
from inference.descriptors import DescriptorMarks
from inference.gateway.server.http_channel import ReadDeadline, ReadTimeouts, StreamChannel
from inference.logs.throttled import ThrottledLog
from inference.protocol.refusals import OVERLOADED
from inference.settings.kinds import Network
from inference.wire.errors import ApiError, ServiceUnavailableError, TooManyConnectionsError

ACCEPTS_A_TURN = 8
"""Twisted accepts a hundred at a time, more than the reserve of file descriptors."""
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
        """Ignored: Twisted adapts it to the load."""


class OpenClients:
    def __init__(self, connections: ClientConnections, timeouts: ReadTimeouts) -> None:
        self._connections = connections
        self._timeouts = timeouts
        self._channels: dict[Any, tuple[str, StreamChannel]] = {}
        self._ports: list[Port] = []
        self._is_accepting = True

    def listen(self, port: int, host: str, factory: Any) -> None:
        """Raises Twisted's ``CannotListenError``."""
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


logger = logging.getLogger(__name__)

OVERLOADED_RETRY_AFTER_S = 2.0


class ClientConnections:
    def __init__(
        self,
        *,
        max_per_address: int,
        trusted_proxies: tuple[Network, ...],
        marks: DescriptorMarks,
        on_refused: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_per_address = max_per_address
        self._trusted_proxies = trusted_proxies
        self._marks = marks
        self._on_refused = on_refused
        self._log = ThrottledLog(logger, logging.WARNING, clock=clock)
        self._by_address: Counter[str] = Counter()

    def admit(self, host: str, descriptor: int) -> ApiError | None:
        address = self._counted(host)
        if address is not None:
            self._by_address[address] += 1
        if descriptor >= self._marks.refuse_from:
            return self._refused(_overloaded(), host, descriptor)
        if address is not None and self._by_address[address] > self._max_per_address:
            return self._refused(TooManyConnectionsError(self._max_per_address), host, descriptor)
        return None

    def release(self, host: str) -> None:
        address = self._counted(host)
        if address is None:
            return
        self._by_address[address] -= 1
        if self._by_address[address] <= 0:
            del self._by_address[address]

    def is_too_many(self, descriptor: int) -> bool:
        return descriptor >= self._marks.stop_from

    def _counted(self, host: str) -> str | None:
        address = client_address(host, "", ())
        if address.is_loopback or any(address in network for network in self._trusted_proxies):
            return None
        return counted_address(address)

    def _refused(self, error: ApiError, host: str, descriptor: int) -> ApiError:
        self._on_refused(error.code)
        self._log.log(
            error.code,
            f"a connection is refused: {error.code}, of {host} with file descriptor {descriptor} "
            f"of {self._marks.limit}",
        )
        return error


def _overloaded() -> ServiceUnavailableError:
    return ServiceUnavailableError(
        OVERLOADED,
        "This gateway has as many connections as its file descriptors allow; try again shortly.",
        retry_after_s=OVERLOADED_RETRY_AFTER_S,
    )
