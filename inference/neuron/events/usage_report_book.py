"""Keeps what requests used, for the case that their gateway dies before it has settled them.

    request ends ─▶ kept for two minutes ──its gateway dies─▶ due ─▶ stream of usage reports
                        request of a dead gateway ends ───────▲

Due reports are sent with every heartbeat until Redis has taken them, as many as its stream has room
for; one that is sent twice is settled once.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

import redis

from inference.neuron.requests.live_request import LiveRequest
from inference.protocol.events import Cancelled, Embedded, Event, Failed, Finished
from inference.protocol.keys import USAGE_STREAM_MAX_ENTRIES, usage_key
from inference.protocol.usage_reports import (
    USAGE_REPORT_FIELD,
    RequestEnd,
    UsageReport,
    encode_usage_report,
)

log = logging.getLogger(__name__)

KEPT_S = 120.0
"""After its end. A gateway that has not settled a request by then died long ago."""
MAX_KEPT = 65_536
"""Some 30 MB. Beyond that the oldest are dropped early."""
MAX_DUE = 65_536
REPORTS_PER_SEND = 512


@dataclass(frozen=True, slots=True)
class KeptReport:
    request_id: str
    gateway_id: str
    report: UsageReport


class UsageReportBook:
    """Any thread may call; nothing blocks. Knows no Redis; times are arguments."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[KeptReport] = deque()
        """The reports in the order of their requests' ends."""
        self._num_kept: Counter[str] = Counter()
        """How many reports are kept for each gateway."""
        self._due: deque[KeptReport] = deque()

    def record(self, live: LiveRequest, end: Event, *, now_unix_s: float) -> None:
        """``live`` has ended with ``end``. Due at once where its gateway is dead. A request without
        a receipt is not billed, so nothing is reported of it."""
        if not live.submit.receipt:
            return
        kept = KeptReport(
            live.request_id, live.submit.gateway_id, _usage_report(live, end, now_unix_s)
        )
        with self._lock:
            if live.is_orphan:
                self._add_due(kept)
                return
            self._kept.append(kept)
            self._num_kept[kept.gateway_id] += 1
            while self._kept and (
                len(self._kept) > MAX_KEPT
                or self._kept[0].report.ended_unix_s < now_unix_s - KEPT_S
            ):
                self._forget(self._kept.popleft())

    def gateway_ids(self) -> set[str]:
        """The gateways whose requests have ended not long ago."""
        with self._lock:
            return set(self._num_kept)

    def gateway_died(self, gateway_id: str, *, now_unix_s: float) -> int:
        """Make the reports of its requests due. Returns their number."""
        with self._lock:
            theirs = [kept for kept in self._kept if kept.gateway_id == gateway_id]
            if theirs:
                self._kept = deque(kept for kept in self._kept if kept.gateway_id != gateway_id)
                del self._num_kept[gateway_id]
            recent = [kept for kept in theirs if kept.report.ended_unix_s >= now_unix_s - KEPT_S]
            for kept in recent:
                self._add_due(kept)
            return len(recent)

    @property
    def has_due(self) -> bool:
        return bool(self._due)

    def take_due(self, most: int) -> list[KeptReport]:
        with self._lock:
            return [self._due.popleft() for _ in range(min(most, len(self._due)))]

    def put_back(self, reports: list[KeptReport]) -> None:
        """They were taken and could not be sent."""
        with self._lock:
            self._due.extendleft(reversed(reports))

    def _add_due(self, kept: KeptReport) -> None:
        self._due.append(kept)
        if len(self._due) > MAX_DUE:
            lost = self._due.popleft()
            log.error("request %s: its usage report is lost, Redis took none", lost.request_id)

    def _forget(self, kept: KeptReport) -> None:
        self._num_kept[kept.gateway_id] -= 1
        if self._num_kept[kept.gateway_id] == 0:
            del self._num_kept[kept.gateway_id]


def _usage_report(live: LiveRequest, end: Event, now_unix_s: float) -> UsageReport:
    outcome: RequestEnd = "finished"
    code = usage = first_token_s = None
    match end:
        case Failed(failure=failure):
            outcome, code, usage = "failed", failure.code, end.usage
        case Cancelled():
            outcome, usage = "cancelled", end.usage
        case Finished() | Embedded():
            usage = end.usage
    if live.first_token_unix_s is not None:
        first_token_s = live.first_token_unix_s - live.started_unix_s
    return UsageReport(
        receipt=live.submit.receipt,
        usage=usage,
        outcome=outcome,
        started_unix_s=live.started_unix_s,
        ended_unix_s=now_unix_s,
        code=code,
        time_to_first_token_s=first_token_s,
    )


def send_due(book: UsageReportBook, client: redis.Redis, *, neuron: str) -> int:
    """Writes due reports to the neuron's stream while it has room; returns how many. The others
    stay due, and all of them where this raises ``redis.RedisError``."""
    if not book.has_due:
        return 0
    num_sent = 0
    room = max(0, USAGE_STREAM_MAX_ENTRIES - _length(client, usage_key(neuron)))
    while reports := book.take_due(min(REPORTS_PER_SEND, room - num_sent)):
        pipeline = client.pipeline(transaction=False)
        for kept in reports:
            data = encode_usage_report(kept.report)
            pipeline.xadd(usage_key(neuron), {USAGE_REPORT_FIELD: data})
        try:
            pipeline.execute()
        except redis.RedisError:
            book.put_back(reports)
            raise
        num_sent += len(reports)
    return num_sent


def _length(client: redis.Redis, key: str) -> int:
    """Raises ``redis.RedisError``."""
    length: Any = client.xlen(key)
    return int(length)
