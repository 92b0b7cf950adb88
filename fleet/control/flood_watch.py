"""Detects invited neurons that flood Redis, between the control's ticks.

    every 20 ms: used_memory ── up by 8 MiB since the least ──▶ what each invited neuron has written
                                                                └─ too much ─▶ it is cut off

Redis has no limit of bytes for a user: a host writes until its user is removed, and in the second
between ticks that is as much as its network carries. The watch polls ``used_memory`` and measures
keys only when it has grown. While no host is invited it polls once a second.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import redis

from fleet.redis_users import invited_names
from inference.logs import ThrottledLog
from inference.supervised_threads import SupervisedThread

logger = logging.getLogger(__name__)
_warnings = ThrottledLog(logger, logging.WARNING, interval_s=3600.0)

INTERVAL_S = 0.02
PAUSE_S = 1.0
"""After a failed poll, and between checks whether any host is invited."""
LOOK_AFTER_BYTES = 8 * 1024 * 1024
"""Half of a neuron's limit beside its events."""


class FloodWatch:
    """``measure`` cuts off neurons that have written too much. ``client`` serves this thread
    alone."""

    def __init__(self, client: redis.Redis, measure: Callable[[], object]) -> None:
        self._client = client
        self._measure = measure
        self._least_bytes: int | None = None
        self._ended = threading.Event()
        self._thread: SupervisedThread | None = None

    def start(self) -> None:
        self._thread = SupervisedThread(self._run, name="flood watch")
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    def look(self) -> bool:
        """Whether Redis had grown so much that neurons were measured. Raises
        ``redis.RedisError``."""
        held = self._held_bytes()
        if self._least_bytes is None or held < self._least_bytes:
            self._least_bytes = held
        if held - self._least_bytes < LOOK_AFTER_BYTES:
            return False
        self._measure()
        self._least_bytes = self._held_bytes()
        return True

    def is_needed(self) -> bool:
        """Whether any host is invited: its user is in Redis. Raises ``redis.RedisError``."""
        return bool(invited_names(self._client))

    def _watch_for(self, duration_s: float) -> None:
        for _ in range(round(duration_s / INTERVAL_S)):
            self.look()
            if self._ended.wait(INTERVAL_S):
                return

    def _held_bytes(self) -> int:
        return int(self._client.info("memory")["used_memory"])

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                if self.is_needed():
                    self._watch_for(PAUSE_S)
                else:
                    self._pause()
            except redis.ResponseError as error:
                _warnings.log("refused", f"Redis is not watched for floods, it refuses: {error}")
                self._pause()
            except (redis.RedisError, OSError):  # the control's ticks log that Redis is offline
                self._pause()

    def _pause(self) -> None:
        self._least_bytes = None
        self._ended.wait(PAUSE_S)
