"""What neurons say of their downloads, out of Redis: understood, or left out.

``inference.protocol.downloads`` has the report. A neuron writes its own every few seconds and when
something changed; a report that is malformed or of another neuron is as good as none.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import redis

from fleet.errors import SnapshotUnavailableError
from fleet.report_bounds import value_problem
from inference.protocol.downloads import CacheReport, decode_cache_report
from inference.protocol.keys import downloads_key

logger = logging.getLogger(__name__)

MAX_REPORT_BYTES = 8 * 1024 * 1024


def read_cache_reports(client: redis.Redis, neurons: Sequence[str]) -> dict[str, CacheReport]:
    """The report of each neuron that has one, by its name. Raises ``SnapshotUnavailableError``."""
    if not neurons:
        return {}
    try:
        payloads: list[bytes | None] = client.mget(  # type: ignore[assignment]
            [downloads_key(neuron) for neuron in neurons]
        )
    except (redis.RedisError, OSError) as error:
        raise SnapshotUnavailableError("Redis does not answer") from error
    reports = {}
    for neuron, payload in zip(neurons, payloads, strict=True):
        if payload is None:
            continue
        try:
            reports[neuron] = _understood(neuron, payload)
        except ValueError as error:
            logger.warning("the downloads of %s are not understood: %s", neuron, error)
    return reports


def _understood(neuron: str, payload: bytes) -> CacheReport:
    """Raises ``ValueError``, which msgspec's errors are."""
    if len(payload) > MAX_REPORT_BYTES:
        raise ValueError(f"{len(payload)} bytes are over the bound of {MAX_REPORT_BYTES}")
    report = decode_cache_report(payload)
    if report.neuron != neuron:
        raise ValueError("it is another neuron's")
    if problem := value_problem(report):
        raise ValueError(problem)
    return report
