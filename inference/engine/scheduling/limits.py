"""What bounds a scheduler: the operator's limits, and the pace of the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    max_running: int = 256
    max_queue_depth: int = 256
    """Beyond the free seats."""
    max_queue_wait_s: float = 60.0
    max_queue_share_percent: int = 50
    prefill_tokens_per_step: int = 512
    """Most prompt rows of one step, beside its decode rows."""
    target_step_s: float | None = None
    """How long a step should take: see ``inference.engine.scheduling.step_pacer``."""

    @property
    def max_queue_depth_per_account(self) -> int:
        """So that one account alone cannot fill the queue; at least one place of it."""
        return -(-self.max_queue_depth * self.max_queue_share_percent // 100)


class Pace(Protocol):
    """How much the next step may hold."""

    @property
    def num_seats(self) -> int:
        """Most sequences to run: more keep running where they already do."""
        ...

    def prefill_tokens(self, num_decode_rows: int) -> int: ...
