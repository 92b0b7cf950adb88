"""The connections that clients have open: how many of one address, and which are refused.

    accepted ─▶ admit ─┬─ None         served
                       └─ ApiError     answered with it once its head has come, then closed
    closed ─▶ release

Loopback and trusted proxies are not counted by address: many clients may be behind them. Knows no
HTTP; belongs to one event loop.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from helexa_site.web.client_address import client_address, counted_address
from inference.descriptors import DescriptorMarks
from inference.protocol.refusals import OVERLOADED
from inference.settings.addresses import Network
from inference.wire.errors import ApiError, ServiceUnavailableError, TooManyConnectionsError

logger = logging.getLogger(__name__)

LOG_INTERVAL_S = 60.0
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
        self._clock = clock
        self._by_address: Counter[str] = Counter()
        self._num_refused: Counter[str] = Counter()
        self._logged_s = -LOG_INTERVAL_S

    def admit(self, host: str, descriptor: int) -> ApiError | None:
        """Why a connection of ``host`` with this file descriptor is not served, where that is so.
        Every connection that was admitted or refused is to be released."""
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
        self._num_refused[error.code] += 1
        self._on_refused(error.code)
        if self._clock() - self._logged_s >= LOG_INTERVAL_S:
            self._logged_s = self._clock()
            logger.warning(
                "connections refused: %s; the last one was of %s with file descriptor %d of %d",
                ", ".join(f"{number} {code}" for code, number in self._num_refused.items()),
                host,
                descriptor,
                self._marks.limit,
            )
            self._num_refused.clear()
        return error


def _overloaded() -> ServiceUnavailableError:
    return ServiceUnavailableError(
        OVERLOADED,
        "This gateway has as many connections as its file descriptors allow; try again shortly.",
        retry_after_s=OVERLOADED_RETRY_AFTER_S,
    )
