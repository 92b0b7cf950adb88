"""How long an engine has said nothing, counted while somebody was there to listen.

An engine that has loaded speaks once a second, whatever it does. Its own watchdog ends a step that
hangs, and writes down where; this is for when nothing runs in that process any more: the
interpreter lock is held, the process is stopped, the kernel does not let go of it. A load is not
counted: downloading and compiling take as long as they take, and say so only now and then. Pure:
times are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.engine.serving.watchdog import step_timeout_s

MARGIN_S = 15.0
"""After the step's timeout: the engine's own watchdog, which knows more, is to be first."""
MAX_GAP_S = 2.0
"""Between two looks, twice what it should be. Where it was longer this process was stopped or
starved, and what the engine said meanwhile may lie unread."""


def silence_limit_s(environment: Mapping[str, str]) -> float | None:
    """``None``: an engine may be silent for ever. Raises ``SettingError``."""
    timeout_s = step_timeout_s(environment)
    return None if timeout_s is None else timeout_s + MARGIN_S


class Silence:
    """How long one engine has been silent, counted once it has loaded."""

    def __init__(self) -> None:
        self._looked_s: float | None = None
        self._silent_s = 0.0

    def end(self) -> None:
        """Starts again from 0: the engine has said something."""
        self._silent_s = 0.0

    def look(self, now_s: float) -> float:
        """Seconds of silence up to now."""
        if self._looked_s is not None:
            self._silent_s += min(now_s - self._looked_s, MAX_GAP_S)
        self._looked_s = now_s
        return self._silent_s
