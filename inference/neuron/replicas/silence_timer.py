"""Measures the time since an engine's last message, counted only while this process was running.

A loaded engine sends a message every second. Its own watchdog ends and logs a step that hangs; this
timer is for a process in which nothing runs: the interpreter lock is held, the process is stopped,
or it hangs in the kernel. Loads are not timed: downloads and compilation report progress only now
and then. Pure: times are arguments."""

from __future__ import annotations

from collections.abc import Mapping

from inference.engine.serving.watchdog import step_timeout_s

MARGIN_S = 15.0
"""After the step's timeout: the engine's own watchdog, which knows more, is to be first."""
MAX_GAP_S = 2.0
"""Longest accepted gap between two checks, twice the usual one. After a longer gap this process was
stopped or starved, and messages of the engine may be unread."""


def silence_limit_s(environment: Mapping[str, str]) -> float | None:
    """Seconds that an engine may be silent; ``None``: no limit. Raises ``SettingError``."""
    timeout_s = step_timeout_s(environment)
    return None if timeout_s is None else timeout_s + MARGIN_S


class SilenceTimer:
    """How long one engine has been silent, counted once it has loaded."""

    def __init__(self) -> None:
        self._looked_s: float | None = None
        self._silent_s = 0.0

    def end(self) -> None:
        """Restart from 0: the engine has sent a message."""
        self._silent_s = 0.0

    def look(self, now_s: float) -> float:
        """Seconds of silence up to now."""
        if self._looked_s is not None:
            self._silent_s += min(now_s - self._looked_s, MAX_GAP_S)
        self._looked_s = now_s
        return self._silent_s
