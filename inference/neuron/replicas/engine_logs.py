"""Engines' standard error: kept by model, bounded in bytes, sent to gateways on request.

    engine's stderr ─▶ EngineProcess' reader ─▶ writer(model) ─▶ this process' stderr
                                                     └─────────▶ the model's last lines ─▶ send

The lines outlive their engine: those of a failed load contain the reason.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable

import redis

from inference.logs.redaction import Redactor, secrets_of
from inference.protocol.engine_logs import (
    ANSWER_EXPIRY_S,
    MAX_LINES,
    EngineLogAnswer,
    encode_engine_log,
)
from inference.protocol.keys import engine_log_key

log = logging.getLogger(__name__)


MAX_MODEL_BYTES = 256 * 1024
MAX_MODELS = 64
"""How many models are kept: those whose engines wrote last."""
STDERR = 2


class EngineLogs:
    """Any thread may call."""

    def __init__(self, client: redis.Redis, *, neuron: str) -> None:
        self._client = client
        self._neuron = neuron
        self._lock = threading.Lock()
        self._by_model: OrderedDict[str, _LastLines] = OrderedDict()
        self._redact = Redactor(secrets_of(os.environ))

    def writer(self, model: str) -> Callable[[bytes], None]:
        """Takes the lines of one engine of that model, one at a time and with its line end."""
        with self._lock:
            self._touch(model)

        def write(line: bytes) -> None:
            with contextlib.suppress(OSError):
                os.write(STDERR, line)
            with self._lock:
                self._touch(model).add(line)

        return write

    def lines(self, model: str, num_lines: int) -> list[str] | None:
        """``None``: no engine for it has run."""
        with self._lock:
            kept = self._by_model.get(model)
            if kept is None:
                return None
            last = list(kept.lines)[-num_lines:] if num_lines > 0 else []
        return [self._redact(line.decode(errors="replace").rstrip("\r\n")) for line in last]

    def send(self, ask_id: str, model: str, num_lines: int) -> None:
        lines = self.lines(model, min(num_lines, MAX_LINES))
        answer = EngineLogAnswer(is_known=lines is not None, lines=lines or [])
        key = engine_log_key(self._neuron, ask_id)
        try:
            pipeline = self._client.pipeline(transaction=True)
            pipeline.rpush(key, encode_engine_log(answer))
            pipeline.expire(key, ANSWER_EXPIRY_S)
            pipeline.execute()
        except redis.RedisError as error:
            log.warning("the log of %s could not be sent: %s", model, error)

    def _touch(self, model: str) -> _LastLines:
        kept = self._by_model.setdefault(model, _LastLines())
        self._by_model.move_to_end(model)
        while len(self._by_model) > MAX_MODELS:
            self._by_model.popitem(last=False)
        return kept


class _LastLines:
    def __init__(self) -> None:
        self.lines: deque[bytes] = deque()
        self._num_bytes = 0

    def add(self, line: bytes) -> None:
        self.lines.append(line)
        self._num_bytes += len(line)
        while self._num_bytes > MAX_MODEL_BYTES:
            self._num_bytes -= len(self.lines.popleft())
