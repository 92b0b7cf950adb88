"""Reports of this gateway. In Redis: refused callers, for pages that list them with reasons, and
the models that requests wait for, for the control. Each class belongs to one event loop.

``NeuronConduct`` counts messages that no honest neuron writes, until it is shut out:

    fault ─▶ counted for a minute ─▶ too many, or grave ─▶ on_cut_off, once a minute
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import redis
import redis.asyncio

from inference.gateway.metrics.requests import CODE_PATTERN, OTHER
from inference.gateway.request.outcome import RequestOutcome
from inference.logs import ThrottledLog
from inference.protocol import keys
from inference.protocol.heartbeat import WaitingModel, WaitingReport, encode_waiting_report
from inference.protocol.refusals import (
    COUNTED_BY_KEY,
    HOUR_S,
    KEPT_HOURS,
    Refused,
    encode_field,
    refusals_key,
)
from inference.redis_link import redis_unavailable
from metering.ledger.entries import Outcome

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
MAX_COUNTED = 1000
LOG_INTERVAL_S = 10.0
WINDOW_S = 60.0
MAX_FAULTS = 30
"""The most faults in a window. A neuron with a broken build fails a few requests, and no more than
these."""
MAX_NEURONS = 2000


class QueueDemandReporter:
    def __init__(self, client: redis.asyncio.Redis, gateway_id: str) -> None:
        self._redis = client
        self._gateway_id = gateway_id
        self._beat = 0
        self._is_published = False

    async def publish(self, waiting: Mapping[str, WaitingModel]) -> None:
        """Sends nothing while no request waits. Raises ``ServiceUnavailableError``."""
        if not waiting and not self._is_published:
            return
        self._beat += 1
        report = encode_waiting_report(WaitingReport(beat=self._beat, models=dict(waiting)))
        try:
            if waiting:
                await self._redis.hset(keys.WAITING, self._gateway_id, report)
            else:
                await self._redis.hdel(keys.WAITING, self._gateway_id)
        except (redis.RedisError, OSError) as error:
            raise redis_unavailable() from error
        self._is_published = bool(waiting)


class RefusalCounts:
    def __init__(self) -> None:
        self._counts: Counter[Refused] = Counter()

    def observe(self, outcome: RequestOutcome) -> None:
        settle = outcome.settle
        if outcome.kind is not Outcome.REFUSED and settle.outcome not in COUNTED_BY_KEY:
            return
        code = settle.outcome if CODE_PATTERN.fullmatch(settle.outcome) else OTHER
        key = settle.key if code in COUNTED_BY_KEY else ""
        self._count(Refused(code, settle.account, key, outcome.error_cause))

    def observe_connection(self, code: str) -> None:
        self._count(Refused(code, ""))

    def _count(self, refused: Refused) -> None:
        if refused in self._counts or len(self._counts) < MAX_COUNTED:
            self._counts[refused] += 1

    async def flush(self, client: redis.asyncio.Redis) -> None:
        if not self._counts:
            return
        counts, self._counts = self._counts, Counter()
        key = refusals_key(time.time())
        pipeline = client.pipeline(transaction=False)
        for refused, number in counts.items():
            pipeline.hincrby(key, encode_field(refused), number)
        pipeline.expire(key, KEPT_HOURS * HOUR_S)
        try:
            await pipeline.execute()
        except (redis.RedisError, OSError) as error:
            logger.info("%d refusals are not counted: %s", counts.total(), error)


@dataclass(slots=True)
class _Record:
    window_began_s: float
    num_faults: int = 0
    is_reported: bool = False


class NeuronConduct:
    def __init__(
        self,
        on_cut_off: Callable[[str, str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_cut_off = on_cut_off
        self._clock = clock
        self._log = ThrottledLog(logger, logging.ERROR, interval_s=LOG_INTERVAL_S, clock=clock)
        self._records: dict[str, _Record] = {}

    def fault(self, neuron: str, what: str, *, is_grave: bool = False) -> None:
        now_s = self._clock()
        record = self._record(neuron, now_s)
        record.num_faults += 1
        self._log.log(neuron, f"neuron {neuron}: {what}")
        if record.is_reported or not (is_grave or record.num_faults > MAX_FAULTS):
            return
        record.is_reported = True
        times = "" if is_grave else f", the last of {record.num_faults} faults in a minute"
        self._on_cut_off(neuron, f"{what}{times}")

    def _record(self, neuron: str, now_s: float) -> _Record:
        record = self._records.get(neuron)
        if record is None or now_s - record.window_began_s > WINDOW_S:
            record = self._records[neuron] = _Record(window_began_s=now_s)
            while len(self._records) > MAX_NEURONS:
                del self._records[next(iter(self._records))]
        return record
