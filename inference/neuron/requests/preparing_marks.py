"""Marks in Redis the requests that this neuron is preparing, so that its death has a suspect.

    begin ─▶ HSET, PEXPIRE ─┐
    end   ─▶ HDEL           ├─▶ a connection without waiting for replies
    keep  (each heartbeat) ─┘   reads the replies, connects again

A mark is written to the socket before the work begins and costs no round trip: the kernel delivers
it even if the process dies in the next instruction. Marks are best effort: while Redis is offline
there are none.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any

import redis

from inference.protocol.held import MARKS_EXPIRY_S, decode_marks
from inference.protocol.keys import preparing_key

log = logging.getLogger(__name__)

EARLIER_KEPT_S = 60.0
"""How long marks of dead instances stay: gateways read them within seconds."""


class PreparingMarks:
    """``begin`` and ``end`` may be called by any thread; the others by the heartbeat's alone."""

    def __init__(self, client: redis.Redis, *, neuron: str, epoch: str) -> None:
        self._client = client
        self._key = preparing_key(neuron)
        self._epoch = epoch
        self._lock = threading.Lock()
        self._connection: Any = None
        self.num_unread = 0
        self.earlier: dict[str, str] = {}
        """Requests that dead instances of this neuron were preparing."""
        self._is_read = False

    def begin(self, request_id: str) -> None:
        """Returns at once."""
        self._send(
            ("HSET", self._key, request_id, self._epoch),
            ("PEXPIRE", self._key, MARKS_EXPIRY_S * 1000),
        )

    def end(self, request_id: str) -> None:
        """Returns at once."""
        self._send(("HDEL", self._key, request_id))

    def read_earlier(self) -> None:
        """Reads the previous instance's marks, once, before the first request. Raises
        ``redis.RedisError``."""
        if self._is_read:
            return
        found: Any = self._client.hgetall(self._key)
        marks = decode_marks(found)
        self.earlier = {one: epoch for one, epoch in marks.items() if epoch != self._epoch}
        self._is_read = True
        if self.earlier:
            log.warning(
                "the previous instance of this neuron ended while it prepared %s",
                ", ".join(sorted(self.earlier)),
            )

    def keep(self, age_s: float) -> None:
        """Connects where there is no connection, and reads its replies. ``age_s``: of this
        instance. Raises ``redis.RedisError``."""
        self._read_replies()
        if self._connection is None:
            self._connect()
        if self.earlier and age_s > EARLIER_KEPT_S:
            self._client.hdel(self._key, *self.earlier)
            self.earlier = {}

    def close(self) -> None:
        self._drop()

    def _connect(self) -> None:
        connection: Any = self._client.connection_pool.make_connection()
        connection.connect()
        with self._lock:
            self._connection, self.num_unread = connection, 0

    def _send(self, *commands: tuple[str | int, ...]) -> None:
        with self._lock:
            connection = self._connection
            if connection is None:
                return
            try:
                packed = connection.pack_commands(commands)
                connection.send_packed_command(packed, check_health=False)
                self.num_unread += len(commands)
            except redis.RedisError as error:
                log.warning("what is being prepared is not marked in Redis: %s", error)
                self._connection = None

    def _read_replies(self) -> None:
        with self._lock:
            connection = self._connection
            try:
                while self.num_unread and connection is not None and connection.can_read(0):
                    self.num_unread -= 1
                    connection.read_response()
            except redis.RedisError as error:
                log.warning("a mark of what is being prepared was not taken: %s", error)
                self._connection = None

    def _drop(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(redis.RedisError):
                connection.disconnect()
