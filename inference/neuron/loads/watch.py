"""Detects a load without progress, and an engine that has gone silent. Pure: times are arguments.

A queued load is not watched: the watches of the loads before it end those.

A loaded engine sends a message every second. Its own watchdog ends a step that hangs;
``SilenceTimer`` is for a process in which nothing runs: the interpreter lock is held, the process
is stopped, or it hangs in the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.protocol.load_report import LoadFailure, LoadProgress, LoadStage
from inference.settings.neuron import LOAD_STALL_S

GRACE_S = 30.0
"""After that the load is given up without its thread."""

MIN_DOWNLOADED_BYTES = 1024 * 1024
"""Within each stall limit: 1.2 KB/s by default."""


MAX_GAP_S = 2.0
"""Twice the usual gap between two checks. After a longer one this process was stopped or starved,
and messages of the engine may be unread.
"""


def load_stall_limit_s(environment: Mapping[str, str]) -> float | None:
    """``None``: no limit. Raises ``SettingError``."""
    return LOAD_STALL_S.read(environment) or None


class SilenceTimer:
    def __init__(self) -> None:
        self._checked_s: float | None = None
        self._silent_s = 0.0

    def end(self) -> None:
        """Call when the engine has sent a message."""
        self._silent_s = 0.0

    def check(self, now_s: float) -> float:
        if self._checked_s is not None:
            self._silent_s += min(now_s - self._checked_s, MAX_GAP_S)
        self._checked_s = now_s
        return self._silent_s


class LoadWatch:
    def __init__(self) -> None:
        self._last: LoadProgress | None = None
        self._moved: LoadProgress | None = None
        self._silence: SilenceTimer | None = None

    def progressed(self, progress: LoadProgress) -> None:
        if progress.stage is LoadStage.QUEUED:
            self._silence = None
        elif self._silence is None or self._moved is None or _has_moved(self._moved, progress):
            self._silence, self._moved = SilenceTimer(), progress
        elif progress.done < self._moved.done:
            self._moved = progress
        self._last = progress

    def stop(self) -> None:
        self._last = self._moved = self._silence = None

    def check(self, now_s: float) -> float:
        silence = self._silence
        return 0.0 if silence is None else silence.check(now_s)

    def failure(self, stalled_s: float) -> LoadFailure:
        at = "its start" if self._last is None else in_words(self._last)
        message = f"the load made no progress for {stalled_s:.0f} s at {at}"
        return LoadFailure(code="load_stalled", message=message)


def _has_moved(before: LoadProgress, progress: LoadProgress) -> bool:
    is_same_file = (progress.stage, progress.detail) == (before.stage, before.detail)
    if progress.stage is not LoadStage.DOWNLOADING or not is_same_file:
        return progress != before
    is_whole = progress.done == progress.total != before.done
    return is_whole or progress.done - before.done >= MIN_DOWNLOADED_BYTES


def in_words(progress: LoadProgress) -> str:
    words = progress.stage.value
    if progress.done or progress.total:
        words += f", {progress.done} of {progress.total or '?'} {progress.unit}"
    return f"{words} ({progress.detail})" if progress.detail else words
