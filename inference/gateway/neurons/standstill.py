"""Detects that this process stood still: it was stopped, swapped out, or starved.

Meanwhile its key lapsed, so that neurons took it for dead and cancelled its requests. What it then
misses of them is its own fault, and their clients are told so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from inference.gateway.request.event_stream import RequestStreams
from inference.protocol.keys import GATEWAY_ALIVE_EXPIRY_S

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.5


class StandstillWatch:
    def __init__(
        self, streams: RequestStreams, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._streams = streams
        self._clock = clock
        self._looked_s = clock()

    async def look(self) -> None:
        before_s, self._looked_s = self._looked_s, self._clock()
        paused_s = self._looked_s - before_s
        if paused_s <= GATEWAY_ALIVE_EXPIRY_S:
            return
        logger.error("this gateway stood still for %.0f s", paused_s)
        for stream in self._streams:
            stream.stood_still_s = paused_s
