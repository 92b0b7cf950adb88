"""Reads the neurons' download reports from Redis; unreadable ones are left out.

``inference.protocol.downloads`` has the report. A neuron writes its own every few seconds and when
something changed; a report that is malformed or of another neuron is ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import redis

from fleet.errors import SnapshotUnavailableError
from fleet.live.neuron_reads import NeuronValueError, run_reads, text_read
from fleet.live.report_bounds import printable, value_problem
from inference.logs.throttled import ThrottledLog
from inference.protocol.downloads import CacheReport, decode_cache_report
from inference.protocol.keys import downloads_key
from inference.redis_connections import MAX_VALUE_BYTES

logger = logging.getLogger(__name__)
_log = ThrottledLog(logger, logging.WARNING)

MAX_REPORT_BYTES = MAX_VALUE_BYTES


def read_cache_reports(client: redis.Redis, neurons: Sequence[str]) -> dict[str, CacheReport]:
    """The report of each neuron that has one, by its name. Raises ``SnapshotUnavailableError``."""
    reads = [text_read(downloads_key(neuron), max_bytes=MAX_REPORT_BYTES) for neuron in neurons]
    try:
        payloads = run_reads(client, reads)
    except (redis.RedisError, OSError) as error:
        raise SnapshotUnavailableError("Redis does not answer") from error
    reports = {}
    for neuron, payload in zip(neurons, payloads, strict=True):
        if payload is None:
            continue
        try:
            if isinstance(payload, NeuronValueError):
                raise ValueError(str(payload))
            reports[neuron] = _understood(neuron, payload)
        except ValueError as error:
            _log.log(neuron, f"the downloads of {neuron} are not understood: {error}")
    return reports


def _understood(neuron: str, payload: bytes) -> CacheReport:
    """Raises ``ValueError``, which msgspec's errors are."""
    report = decode_cache_report(payload)
    if report.neuron != neuron:
        raise ValueError("it is another neuron's")
    if problem := value_problem(report):
        raise ValueError(problem)
    return printable(report)
