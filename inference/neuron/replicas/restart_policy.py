"""Decides when an engine that died is started again, and when the watchdog gives up. Pure
arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from inference.backoff import Backoff

RESTART_BACKOFF = Backoff(first_s=0.5, max_s=30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    healthy_after_s: float = 60.0
    """An engine that served this long had recovered: failures before it no longer count."""
    max_quick_failures: int = 5
    """The number of quick failures in a row that are restarted; the next one fails the replica."""
    backoff: Backoff = RESTART_BACKOFF

    def delay_s(self, num_quick_failures: int) -> float | None:
        """Seconds to wait before the next start: none after the first failure, then doubling;
        ``None`` when it is time to give up."""
        if num_quick_failures > self.max_quick_failures:
            return None
        if num_quick_failures <= 1:
            return 0.0
        return self.backoff.wait_s(num_quick_failures - 1)
