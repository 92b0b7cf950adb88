"""The neuron's pulse: a thread beats each second, and at once when a replica's status moves."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import redis
from redis.client import Pipeline

from inference.neuron.name_lease import (
    LEASE_EXPIRY_MS,
    AccessRefusal,
    InvitationVoidError,
    NameLostError,
)
from inference.protocol.delivery import HeldRequests, encode_held_requests
from inference.protocol.heartbeat import NeuronHeartbeat, encode_heartbeat
from inference.protocol.keys import (
    HEARTBEAT_INTERVAL_S,
    Continuity,
    gateway_alive_key,
    heartbeat_key,
    held_key,
)
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)


MISSES_UNTIL_DEAD = 2
"""Misses in a row, counted once Redis has answered for long enough that a living gateway has
written its key.
"""
MISSES_UNTIL_DEAD_ANYWAY = 15
"""The limit where beats come so slowly that Redis never seems to have settled."""


def queue_heartbeat(
    pipe: Pipeline, heartbeat: NeuronHeartbeat, held: Mapping[str, HeldRequests]
) -> None:
    key = held_key(heartbeat.name)
    fields: dict[Any, Any] = {name: encode_held_requests(one) for name, one in held.items()}
    pipe.set(heartbeat_key(heartbeat.name), encode_heartbeat(heartbeat), px=LEASE_EXPIRY_MS)
    pipe.delete(key)
    if fields:
        pipe.hset(key, mapping=fields)
        pipe.pexpire(key, LEASE_EXPIRY_MS)


class GatewayWatch:
    """Detects dead gateways among those that wait for this neuron. After a Redis outage the keys of
    all of them have expired."""

    def __init__(self, client: redis.Redis, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._continuity = Continuity()
        self._num_misses: dict[str, int] = {}
        self.interrupted = self._continuity.interrupted

    def dead(self, gateway_ids: set[str]) -> list[str]:
        """Call once per beat. Raises ``redis.RedisError``."""
        ordered = sorted(gateway_ids)
        pipeline = self._client.pipeline(transaction=False)
        for gateway_id in ordered:
            pipeline.exists(gateway_alive_key(gateway_id))
        are_alive = pipeline.execute() if ordered else []
        now_s = self._clock()
        self._continuity.answered(now_s)
        self._num_misses = {
            gateway_id: self._num_misses.get(gateway_id, 0) + 1
            for gateway_id, is_alive in zip(ordered, are_alive, strict=True)
            if not is_alive
        }
        is_settled = self._continuity.is_settled(now_s)
        limit = MISSES_UNTIL_DEAD if is_settled else MISSES_UNTIL_DEAD_ANYWAY
        return [name for name, misses in self._num_misses.items() if misses >= limit]


class Heart:
    """A Redis outage does not stop the beats; losing the neuron's name or its invitation does, and
    calls ``on_lost``."""

    def __init__(self, on_beat: Callable[[], None], on_lost: Callable[[], None]) -> None:
        self._on_beat = on_beat
        self._on_lost = on_lost
        self._wake = threading.Event()
        self._stopping = False
        self._is_reaching = True
        self._access = AccessRefusal()
        self.thread = SupervisedThread(self._run, name="heartbeat")
        self.start = self.thread.start
        self.beat_now = self._wake.set

    def stop(self, timeout_s: float) -> None:
        self._stopping = True
        self._wake.set()
        self.thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping:
            if not self._beat():
                self._on_lost()
                return
            self._wake.wait(HEARTBEAT_INTERVAL_S)
            self._wake.clear()

    def _beat(self) -> bool:
        outage: redis.RedisError | None = None
        try:
            self._on_beat()
        except redis.RedisError as error:
            outage = error
        except NameLostError as error:
            log.critical("%s; this one ends", error)
            return False
        except Exception:
            log.exception("a heartbeat broke")
            return True
        self._log_outage(outage)
        try:
            self._access.note(outage)
        except InvitationVoidError as void:
            log.critical("%s; this neuron ends", void)
            return False
        return True

    def _log_outage(self, error: redis.RedisError | None) -> None:
        if error is not None and self._is_reaching:
            log.error("heartbeats do not reach Redis: %s", error)
        if error is None and not self._is_reaching:
            log.warning("heartbeats reach Redis again")
        self._is_reaching = error is None
