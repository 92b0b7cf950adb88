"""Notices a load that makes no progress: a header that is read for ever, a source that stalls.

    progressed(another stage, bytes, tensors) ─▶ from 0 ──look──▶ how long nothing moved
    progressed(queued), stop                  ─▶ not watched

What waits for other loads is not watched: their own watches end those. Pure: times are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.neuron.silence import Silence
from inference.protocol.load import LoadFailure, LoadProgress, LoadStage
from inference.settings.neuron import LOAD_STALL_S

GRACE_S = 30.0
"""How long the thread of a load may take to end it, until the load is given up without it."""


def load_stall_limit_s(environment: Mapping[str, str]) -> float | None:
    """``None``: a load may stand still for ever. Raises ``SettingError``."""
    return LOAD_STALL_S.read(environment) or None


class LoadWatch:
    """One load's; ``look`` regularly."""

    def __init__(self) -> None:
        self._last: LoadProgress | None = None
        self._silence: Silence | None = None

    def progressed(self, progress: LoadProgress) -> None:
        if progress.stage is LoadStage.QUEUED:
            self._silence = None
        elif progress != self._last or self._silence is None:
            self._silence = Silence()
        self._last = progress

    def stop(self) -> None:
        """It has loaded or failed."""
        self._last = self._silence = None

    def look(self, now_s: float) -> float:
        """For how many seconds nothing has moved."""
        silence = self._silence
        return 0.0 if silence is None else silence.look(now_s)

    def failure(self, stalled_s: float) -> LoadFailure:
        at = "its start" if self._last is None else in_words(self._last)
        message = f"the load made no progress for {stalled_s:.0f} s at {at}"
        return LoadFailure(code="load_stalled", message=message)


def in_words(progress: LoadProgress) -> str:
    words = progress.stage.value
    if progress.done or progress.total:
        words += f", {progress.done} of {progress.total or '?'} {progress.unit}"
    return f"{words} ({progress.detail})" if progress.detail else words
