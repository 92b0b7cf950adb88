"""Takes everything out of this neuron's inbox, in the order in which gateways put it there."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import cast

import msgspec
import redis

from inference.protocol.generation import InboxFrame, decode_inbox_frame
from inference.protocol.keys import inbox_key

log = logging.getLogger(__name__)

FRAMES_PER_POP = 256


class Inbox:
    """The doorbell and the heartbeat both drain; one at a time, so that order holds."""

    def __init__(
        self, client: redis.Redis, *, neuron: str, handle: Callable[[InboxFrame, int], None]
    ) -> None:
        """``handle`` gets a frame and its size in bytes, and must return at once."""
        self._client = client
        self._key = inbox_key(neuron)
        self._handle = handle
        self._lock = threading.Lock()

    def drain(self) -> int:
        """How many frames were there. Raises ``redis.RedisError``."""
        num_frames = 0
        with self._lock:
            while frames := self._pop():
                num_frames += len(frames)
                for frame in frames:
                    self._handle_bytes(frame)
                if len(frames) < FRAMES_PER_POP:
                    break
        return num_frames

    def _pop(self) -> list[bytes]:
        # LPUSH at the left and RPOP at the right: the oldest first.
        frames = cast("list[bytes] | None", self._client.rpop(self._key, FRAMES_PER_POP))
        return frames or []

    def _handle_bytes(self, data: bytes) -> None:
        try:
            frame = decode_inbox_frame(data)
        except msgspec.MsgspecError as error:
            # Nobody to answer: the request id is inside what cannot be read.
            log.error("an inbox frame of %d bytes is not understood: %s", len(data), error)
            return
        self._handle(frame, len(data))
