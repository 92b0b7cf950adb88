"""Estimates a load's progress and remaining time by the last load of that model on that neuron.

Pure. An engine starts, reads headers and warms up without a rate: then only the last load's
duration is known. Once this load takes longer, the rate of its stage counts, if it has one.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet.live.snapshot import remaining_s
from inference.protocol.load_report import LoadStage

BEFORE_ENGINE = frozenset({LoadStage.QUEUED, LoadStage.DOWNLOADING})
OF_A_LOAD = frozenset(
    {LoadStage.STARTING, LoadStage.PREFLIGHT, LoadStage.WEIGHTS, LoadStage.WARMUP}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadEstimate:
    """Estimates of a load; ``None``: unknown."""

    share: float | None = None
    """The completed share of the whole load, 0 to 1."""
    left_s: float | None = None


NO_ESTIMATE = LoadEstimate()


def load_estimate(
    *,
    stage: str,
    done: int,
    total: int,
    stage_elapsed_s: float | None,
    engine_elapsed_s: float | None,
    last_load_s: float | None,
) -> LoadEstimate:
    """``engine_elapsed_s``: since the load's engine started; ``last_load_s``: from an engine's
    start to its end, when it was last loaded there."""
    stage_left_s = None if stage_elapsed_s is None else remaining_s(stage_elapsed_s, done, total)
    if stage in BEFORE_ENGINE:
        left_s = None if stage_left_s is None else stage_left_s + (last_load_s or 0.0)
        return LoadEstimate(left_s=left_s)
    is_as_usual = (
        stage in OF_A_LOAD
        and last_load_s is not None
        and engine_elapsed_s is not None
        and engine_elapsed_s < last_load_s
    )
    if not is_as_usual:
        return LoadEstimate(left_s=stage_left_s)
    assert last_load_s is not None and engine_elapsed_s is not None
    return LoadEstimate(
        share=max(0.0, engine_elapsed_s) / last_load_s,
        left_s=last_load_s - max(0.0, engine_elapsed_s),
    )
