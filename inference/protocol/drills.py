"""Orders to inject a fault in a neuron, so that an operator can watch the fleet recover."""

from __future__ import annotations

from enum import StrEnum

import msgspec

MAX_DRILL_S = 600


class Fault(StrEnum):
    KILL_ENGINE = "kill-engine"
    """SIGKILL to the engine of a loaded model."""
    STALL_ENGINE = "stall-engine"
    """Its engine stands still for some seconds, in the middle of a step if one is under way."""
    FAIL_LOAD = "fail-load"
    """The next start of an engine for the model fails."""
    DROP_LINK = "drop-link"
    """The neuron reaches no Redis for some seconds: no heartbeat, no events."""


FAULTS_OF_MODELS = frozenset({Fault.KILL_ENGINE, Fault.STALL_ENGINE, Fault.FAIL_LOAD})
FAULTS_THAT_LAST = frozenset({Fault.STALL_ENGINE, Fault.DROP_LINK})


class FaultOrder(msgspec.Struct, frozen=True, kw_only=True):
    fault: Fault
    model: str | None = None
    """The model, for one of ``FAULTS_OF_MODELS``."""
    lasts_s: int | None = None
    """The duration, for one of ``FAULTS_THAT_LAST``; ``MAX_DRILL_S`` at most."""
