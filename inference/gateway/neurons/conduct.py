"""Counts what neurons write that no honest one does, until one is shut out.

    fault ─▶ counted for a minute ─▶ too many ─▶ on_cut_off, once a minute
      └─▶ logged, once in a while

Belongs to one event loop. Knows no database: who may be shut out is decided elsewhere.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from inference.logs.throttled import ThrottledLog

logger = logging.getLogger(__name__)

WINDOW_S = 60.0
MAX_FAULTS = 30
"""The most faults in a window. A neuron whose build is broken fails a few requests, and no more
than these."""
LOG_INTERVAL_S = 10.0
MAX_NEURONS = 2000


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
