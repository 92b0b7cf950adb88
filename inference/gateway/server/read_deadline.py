"""When a client that is sending a request must have sent more of it. Pure: times are arguments.

waiting ─first byte─▶ head ─complete─▶ body ─complete─▶ answering ─answered─▶ waiting
 idle_s                head_s           body_s, again with every MIN_BODY_BYTES,   no deadline
                                        and MAX_BODY_S altogether
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

MIN_BODY_BYTES = 4096
"""What a body must bring in each ``body_s`` that it is not complete."""
MAX_BODY_S = 3600.0
"""How long a body may take altogether, without the pauses of the server's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTimeouts:
    head_s: float
    """From the first byte of a request until its head is complete, however slowly that comes."""
    body_s: float
    """A body that is not complete brings ``MIN_BODY_BYTES`` in each period of this length."""
    idle_s: float
    """How long a connection is kept on which nothing is asked."""


class Reading(enum.Enum):
    WAITING = enum.auto()
    """Nothing has come of the next request."""
    HEAD = enum.auto()
    BODY = enum.auto()
    ANSWERING = enum.auto()
    """The request is complete. How long its answer takes is not the client's doing."""


class ReadDeadline:
    """One connection's."""

    __slots__ = ("_body_left_s", "_due_s", "_num_bytes", "_read_from_s", "_timeouts", "reading")

    def __init__(self, timeouts: ReadTimeouts, now_s: float) -> None:
        self._timeouts = timeouts
        self.wait(now_s)

    def wait(self, now_s: float) -> None:
        self.reading = Reading.WAITING
        self._num_bytes = 0
        self._body_left_s = max(MAX_BODY_S, self._timeouts.body_s)
        self._read_from_s = now_s
        self._due_s = now_s + self._timeouts.idle_s

    def begin_head(self, now_s: float) -> None:
        self.reading = Reading.HEAD
        self._body_left_s = max(MAX_BODY_S, self._timeouts.body_s)
        self._due_s = now_s + self._timeouts.head_s

    def begin_body(self, now_s: float) -> None:
        """Also called when the server resumes reading after a pause of its own."""
        self.reading = Reading.BODY
        self._num_bytes = 0
        self._read_from_s = now_s
        self._due_s = now_s + min(self._timeouts.body_s, self._body_left_s)

    def receive(self, num_bytes: int) -> None:
        """Of the body."""
        self._num_bytes += num_bytes

    def stop(self) -> None:
        """The request is complete, or the server does not read for a while."""
        self.reading = Reading.ANSWERING
        self._due_s = math.inf

    def is_overdue(self, now_s: float) -> bool:
        """Begins the next period of a body that has brought enough in the last one."""
        if now_s < self._due_s:
            return False
        if self.reading is Reading.BODY and self._num_bytes >= MIN_BODY_BYTES:
            self._body_left_s -= now_s - self._read_from_s
            self.begin_body(now_s)
            return self._body_left_s <= 0
        return True
