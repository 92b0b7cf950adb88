"""Elects a leader among several controls: it alone records heartbeats, reconciles and settles.

    lease helexa:control:leader in Redis ─ free ─▶ ours ─▶ a new term in the database ─▶ ticks run
                     ▲                                          │
                     └── a leader that falls silent             └─ each write looks: another term?
                         is followed within seconds                 DeposedError, nothing is written

The lease elects a leader quickly, but cannot stop one that was paused between two statements. The
term can: it is counted in the database, and a transaction of an older term is rolled back. On
PostgreSQL a new term waits for transactions of the old one, which end within ``FROZEN_SESSION_S``
even if their process hangs. On SQLite only one transaction runs at a time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import redis
from django.db import connection, transaction
from django.db.models import F

from fleet.errors import DeposedError
from fleet.live import reading as live
from fleet.models import ControlTerm
from inference.protocol.keys import CONTROL_LEADER

logger = logging.getLogger(__name__)

LEASE_S = 4.0
RENEW_AFTER_S = 0.8
"""Less than a tick."""
FROZEN_SESSION_S = 3
TERM_LOCK = 0x68656C65
"""PostgreSQL's advisory lock: shared by a term's transactions, exclusive to begin another."""

RENEW = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
    return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return holder and 1 or 2
"""
"""0: another process leads. 1: this one still leads. 2: it leads now, none did before."""
RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
    redis.call('DEL', KEYS[1])
end
"""


class Leadership:
    """For one thread."""

    def __init__(
        self,
        client: Callable[[], redis.Redis],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._clock = clock
        self.control_id = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._term: int | None = None
        self._leads = False
        self._renewed_s = float("-inf")
        self.term_began_s: float | None = None
        """The term began then, by ``clock``; ``None``: this process never led."""

    def leads(self) -> bool:
        """Renews the lease, or claims a free one. While Redis does not answer nothing changes: the
        term in the database holds. Raises ``django.db.Error``."""
        now_s = self._clock()
        if self._leads and now_s - self._renewed_s < RENEW_AFTER_S:
            return True
        try:
            reply: Any = self._client().eval(
                RENEW, 1, CONTROL_LEADER, self.control_id, int(LEASE_S * 1000)
            )
        except (redis.RedisError, OSError) as error:
            logger.warning("who leads is not known, Redis does not answer: %s", error)
            return self._leads
        self._renewed_s = now_s
        if reply == 0:
            self._step_down("another control leads")
        elif reply == 2 or not self._leads:
            self._begin_term()
        return self._leads

    @contextlib.contextmanager
    def fenced(self) -> Iterator[None]:
        """Raises ``DeposedError`` and writes nothing where this process' term is over. A process
        that never led, such as a task run by hand, writes unfenced."""
        with transaction.atomic():
            if self._term is not None:
                self.leads()
                self._ensure_term(self._term)
            yield

    def resign(self) -> None:
        """For shutdown: another control need not wait until the lease expires."""
        self._leads = False
        with contextlib.suppress(redis.RedisError, OSError):
            self._client().eval(RELEASE, 1, CONTROL_LEADER, self.control_id)

    def _begin_term(self) -> None:
        with transaction.atomic():
            if connection.vendor == "postgresql":
                _execute("SELECT pg_advisory_xact_lock(%s)", TERM_LOCK)
            ControlTerm.objects.get_or_create(pk=1)
            ControlTerm.objects.filter(pk=1).update(
                number=F("number") + 1, control_id=self.control_id
            )
            self._term = ControlTerm.objects.get(pk=1).number
        self._leads = True
        self.term_began_s = self._clock()
        logger.info("this control leads (%s, term %d)", self.control_id, self._term)

    def _ensure_term(self, term: int) -> None:
        if connection.vendor == "postgresql":
            _execute(
                "SELECT pg_advisory_xact_lock_shared(%s), "
                "set_config('idle_in_transaction_session_timeout', %s, true)",
                TERM_LOCK,
                str(FROZEN_SESSION_S * 1000),
            )
        current = ControlTerm.objects.get(pk=1)
        if current.number != term:
            self._step_down("its term is over")
            raise DeposedError(f"control {current.control_id} leads since term {current.number}")

    def _step_down(self, why: str) -> None:
        if self._leads:
            logger.warning("this control leads no more: %s", why)
        self._leads = False


this_control = Leadership(lambda: live.redis_client())
"""The ticks' writes are inside ``this_control.fenced()``."""


def _execute(statement: str, *arguments: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, arguments)
