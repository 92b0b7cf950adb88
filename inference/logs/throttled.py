"""Logs that what others do each second fills with no lines: a few for each of them in an interval.

For whatever is read over and over: a neuron's broken report, a disk that stays full. Standard
library only.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_KEYS = 2000


@dataclass(slots=True)
class _Interval:
    began_s: float
    messages: set[str] = field(default_factory=set)
    num_left_out: int = 0


class ThrottledLog:
    """Logs for each key at most ``max_messages`` different messages in an interval, each once. The
    first message of the next interval gives the number that were left out. Belongs to one
    thread."""

    def __init__(
        self,
        logger: logging.Logger,
        level: int,
        *,
        interval_s: float = 60.0,
        max_messages: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._level = level
        self._interval_s = interval_s
        self._max_messages = max_messages
        self._clock = clock
        self._intervals: OrderedDict[str, _Interval] = OrderedDict()

    def log(self, key: str, message: str) -> None:
        now_s = self._clock()
        interval = self._intervals.get(key)
        more = ""
        if interval is None or now_s - interval.began_s >= self._interval_s:
            if interval is not None and interval.num_left_out:
                more = f" (and {interval.num_left_out} more like it)"
            interval = self._intervals[key] = _Interval(began_s=now_s)
        self._intervals.move_to_end(key)
        while len(self._intervals) > MAX_KEYS:
            self._intervals.popitem(last=False)
        if message in interval.messages or len(interval.messages) >= self._max_messages:
            interval.num_left_out += 1
            return
        interval.messages.add(message)
        self._logger.log(self._level, "%s%s", message, more)

    def forget(self, key: str) -> None:
        """The next message of this key is logged."""
        self._intervals.pop(key, None)
