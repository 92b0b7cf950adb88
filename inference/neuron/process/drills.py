"""Injects the faults that an operator orders, so that recovery can be seen. Off by default.

    kill-engine, stall-engine ─▶ signals to the engine's processes
    fail-load ─────────────────▶ the next start of that model's engine raises ``OSError``
    drop-link ─────────────────▶ the link to Redis refuses commands for a while

Nothing here repairs anything: what recovers is what always does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from inference.neuron.process.redis_client import Link
from inference.neuron.replicas.by_model import Replicas
from inference.neuron.replicas.engine_process import EngineProcess
from inference.protocol.drills import Fault, FaultOrder
from inference.settings.neuron import FAULT_DRILLS

log = logging.getLogger(__name__)


def allows_drills(environment: Mapping[str, str]) -> bool:
    """Raises ``SettingError``."""
    return FAULT_DRILLS.read(environment)


class Drills:
    """Thread-safe."""

    def __init__(self, *, is_allowed: bool, replicas: Replicas, link: Link | None) -> None:
        """``link``: the connections that ``drop-link`` cuts; ``None``: they cannot be cut."""
        self.is_allowed = is_allowed
        self._replicas = replicas
        self._link = link
        self._lock = threading.Lock()
        self._failing_loads: set[str] = set()

    def inject(self, order: FaultOrder) -> None:
        """An order that cannot be followed is logged: its neuron is what the operator looks at."""
        if not self.is_allowed:
            log.error("drill: %s is refused: %s is not set", order.fault, FAULT_DRILLS.name)
            return
        log.warning("drill: %s%s", order.fault, "" if order.model is None else f" of {order.model}")
        match order.fault:
            case Fault.KILL_ENGINE:
                self._with_engine(order, EngineProcess.kill)
            case Fault.STALL_ENGINE:
                self._with_engine(order, lambda engine: engine.suspend(order.lasts_s or 0))
            case Fault.FAIL_LOAD:
                with self._lock:
                    self._failing_loads.add(order.model or "")
            case Fault.DROP_LINK if self._link is not None:
                self._link.drop(order.lasts_s or 0)
            case Fault.DROP_LINK:
                log.error("drill: this neuron's link cannot be dropped")

    def check_start(self, model: str) -> None:
        """Raises ``OSError`` where the next start of this model's engine is to fail."""
        with self._lock:
            fails = model in self._failing_loads
            self._failing_loads.discard(model)
        if fails:
            raise OSError("a drill has this start fail")

    def _with_engine(self, order: FaultOrder, strike: Callable[[EngineProcess], None]) -> None:
        replica = self._replicas.find(order.model or "")
        if replica is None or not replica.strike(strike):
            log.error("drill: %s: %s has no engine here", order.fault, order.model)
