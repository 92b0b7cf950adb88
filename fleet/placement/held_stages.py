"""Models with stages on several neurons: placement, and the next step of a load. Pure.

LOADING, LISTENING, READY without a replica ─▶ the load is under way, or its rest is ending
FAILED a short while ago ───────────────────▶ that neuron is left out meanwhile

every other neuron is ordered its stage ─▶ all listen ──────────▶ the engine's neuron is sent it
                                        ─▶ one refused, or gone ─▶ the load fails
a stage whose load has ended, or whose engine is gone ──────────▶ it is released
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import FleetSnapshot, HeldStageView, ReplicaView
from fleet.placement.decisions import Reject, Wait
from fleet.placement.failures import LOST_ITS_ROOM
from inference.protocol.heartbeat import HeldStageStatus, ReplicaStatus
from inference.protocol.load import StageSpec
from inference.protocol.load_report import LoadFailure, LoadProgress

FAILED_STAGE_BACKOFF_S = 30.0
"""A neuron that could not hold a stage is left out for the same model for this long."""
PERMANENT_BACKOFF_S = 600.0
"""The same where its next try would fail too, until its files or its entry change."""
UNKNOWN = LoadFailure(code="unknown", message="no reason was given")
HAS_LINKS = (HeldStageStatus.LISTENING, HeldStageStatus.READY)


def stages_under_way(model: str, snapshot: FleetSnapshot) -> Wait | None:
    """A wait, where neurons hold stages of a model that no replica uses yet, or any more."""
    held = [one for one in snapshot.held_stages() if one.stage.model == model and not one.is_failed]
    if not held:
        return None
    neurons = sorted({one.neuron for one in held})
    return Wait(
        neuron=held[0].stage.engine_neuron,
        model=model,
        reason=f"{model} is loaded on several hosts, and stages of it are on "
        f"{' and '.join(neurons)}",
    )


def failing_stages(entry: CatalogueEntry, snapshot: FleetSnapshot) -> tuple[HeldStageView, ...]:
    digest = entry.spec_digest()
    return tuple(
        one
        for one in snapshot.held_stages()
        if one.stage.model == entry.name
        and one.is_failed
        and one.stage.spec_digest in ("", digest)
        and _retry_in_s(one) > 0
    )


def stage_failed(entry: CatalogueEntry, failing: Sequence[HeldStageView]) -> Reject:
    """The refusal while only neurons that just failed have room, from the first to be retried."""
    first = min(failing, key=lambda one: (_retry_in_s(one), one.neuron))
    failure = first.stage.failure or UNKNOWN
    return Reject(
        code="load_failed",
        message=f"Loading {entry.name} failed on {first.neuron}, which was to hold its layers "
        f"{first.stage.layers[0]} to {first.stage.layers[1] - 1}: {failure.message}",
        retry_after_s=max(1.0, _retry_in_s(first)),
        suggestion=failure.suggestion,
    )


def stage_neurons(replica: ReplicaView) -> frozenset[str]:
    stages = () if replica.report is None else replica.report.stages
    return frozenset(stage.neuron for stage in stages if stage.neuron)


def _retry_in_s(failed: HeldStageView) -> float:
    failure = failed.stage.failure or UNKNOWN
    if failure.code == LOST_ITS_ROOM:
        return 0.0
    backoff_s = PERMANENT_BACKOFF_S if failure.is_permanent else FAILED_STAGE_BACKOFF_S
    return backoff_s - failed.status_age_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoad:
    job_id: str
    model: str
    neuron: str
    stages: Sequence[StageSpec]
    is_late: bool
    """Whether every neuron must have received its order by now."""


@dataclass(frozen=True, slots=True)
class StagesListen:
    addresses: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class StagesLoading:
    progress: LoadProgress | None
    """Of the next stage, with a line about each; ``None``: none reports yet."""


def next_step(
    load: StageLoad, snapshot: FleetSnapshot
) -> StagesListen | StagesLoading | LoadFailure:
    far = {index: stage for index, stage in enumerate(load.stages) if stage.neuron}
    held = {
        one.stage.index: one
        for one in snapshot.held_stages()
        if (one.stage.job_id, one.stage.model) == (load.job_id, load.model)
        and one.stage.index in far
        and one.neuron == far[one.stage.index].neuron
    }
    for index, stage in far.items():
        if (failure := _failure(load, stage, held.get(index), snapshot)) is not None:
            return failure
    if snapshot.neuron(load.neuron) is None:
        return _offline_failure(load.neuron, "has the engine")
    if all(index in held and held[index].stage.status in HAS_LINKS for index in far):
        return StagesListen({index: held[index].stage.address for index in far})
    return StagesLoading(_progress(far, held))


def unwanted_stages(
    snapshot: FleetSnapshot, active_jobs: Collection[str]
) -> Iterator[tuple[str, str, str]]:
    """Neuron, model and job id of stages to release. ``active_jobs``: ids of the active loads, read
    after the snapshot."""
    for one in snapshot.held_stages():
        stage = one.stage
        if not one.is_failed and stage.job_id not in active_jobs and not _is_used(one, snapshot):
            yield one.neuron, stage.model, stage.job_id


def _is_used(one: HeldStageView, snapshot: FleetSnapshot) -> bool:
    """Whether an engine uses it, or will. A stage that has its layers ends with its engine by
    itself; a silent neuron is left to that."""
    stage = one.stage
    engine = snapshot.neuron(stage.engine_neuron)
    replica = None if engine is None else engine.replica_of(stage.model)
    is_alive = replica is not None and replica.status is not ReplicaStatus.FAILED
    if stage.status is HeldStageStatus.READY:
        return engine is None or is_alive
    return is_alive and replica is not None and replica.job_id == stage.job_id


def _failure(
    load: StageLoad, stage: StageSpec, held: HeldStageView | None, snapshot: FleetSnapshot
) -> LoadFailure | None:
    if snapshot.neuron(stage.neuron) is None:
        return _offline_failure(stage.neuron, f"was to hold {_where(stage)}")
    if held is None:
        message = f"{stage.neuron} did not take up its order to hold {_where(stage)}"
        return LoadFailure(code="not_picked_up", message=message) if load.is_late else None
    if not held.is_failed:
        return None
    failure = held.stage.failure or UNKNOWN
    message = f"{_where(stage)} of {stage.neuron}: {failure.message}"
    # One stage's need is not that of the whole model.
    return msgspec.structs.replace(failure, message=message, needed_bytes=None, costs=None)


def _offline_failure(neuron: str, what: str) -> LoadFailure:
    message = f"{neuron}, which {what}, went away during the load"
    return LoadFailure(code="neuron_away", message=message)


def _progress(
    far: Mapping[int, StageSpec], held: Mapping[int, HeldStageView]
) -> LoadProgress | None:
    behind_first = sorted(held.values(), key=lambda one: one.stage.status in HAS_LINKS)
    progress = next((one.stage.progress for one in behind_first if one.stage.progress), None)
    if progress is None:
        return None
    lines = (
        f"{_where(stage)} of {stage.neuron}: {_words(held.get(index))}"
        for index, stage in far.items()
    )
    return msgspec.structs.replace(progress, detail="; ".join(lines))


def _words(held: HeldStageView | None) -> str:
    if held is None:
        return "ordered"
    if held.stage.status in HAS_LINKS:
        return "waits for its engine"
    progress = held.stage.progress
    return held.stage.status.value if progress is None else progress.stage.value


def _where(stage: StageSpec) -> str:
    return f"layers {stage.layers[0]} to {stage.layers[1] - 1} on {stage.device}"
