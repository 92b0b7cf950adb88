"""What the stages that neurons hold for others' engines mean for their model's placement. Pure.

LOADING, LISTENING, READY without a replica ─▶ the load is under way, or its rest is ending
FAILED a short while ago ───────────────────▶ that neuron is left out meanwhile
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import FleetSnapshot, HeldStageView, ReplicaView
from fleet.placement.decisions import Reject, Wait
from fleet.placement.failures import LOST_ITS_ROOM
from inference.protocol.load_progress import LoadFailure

FAILED_STAGE_BACKOFF_S = 30.0
"""A neuron that could not hold a stage is not asked for one of the same model for so long."""
PERMANENT_BACKOFF_S = 600.0
"""The same where its next try would fail too, until its files or its entry change."""
UNKNOWN = LoadFailure(code="unknown", message="no reason was given")


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
    """Stages that failed so lately that their neurons are left out."""
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
    """The refusal while only neurons that just failed have room. The first to be asked again
    speaks for all."""
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
    """The neurons beside its own that hold stages of a replica."""
    stages = () if replica.report is None else replica.report.stages
    return frozenset(stage.neuron for stage in stages if stage.neuron)


def _retry_in_s(failed: HeldStageView) -> float:
    failure = failed.stage.failure or UNKNOWN
    if failure.code == LOST_ITS_ROOM:
        return 0.0
    backoff_s = PERMANENT_BACKOFF_S if failure.is_permanent else FAILED_STAGE_BACKOFF_S
    return backoff_s - failed.status_age_s
