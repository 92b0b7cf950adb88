"""Loads with stages on several neurons: orders stages, then the engine; releases unused stages.

    load_job_start ─▶ identities, an order for each other neuron ─▶ their heartbeats: it listens
    each tick      ─▶ all listen: the engine's load, with their addresses and certificates
                   ─▶ one refused, or gone: the job fails
                   ─▶ stages whose load has ended, or whose engine is gone: they are released
    unload, cancel ─▶ the engine was not ordered yet: the job ends, and all are released

Identities are made for one load. Each secret goes to its own neuron alone; the engine's waits in
the job's row, encrypted, until its stages listen.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime

import msgspec
from django.conf import settings as django
from django.db import transaction
from django.utils import timezone

from fleet import neuron_client, selectors
from fleet.errors import BrokerUnavailableError, UpstreamSecretError
from fleet.lifecycles import LEAVING_KINDS, LoadJobStatus
from fleet.live.reports import load_orders
from fleet.live.snapshot import FleetSnapshot, HeldStageView
from fleet.models import LoadJob
from fleet.placement.failures import UNKNOWN
from fleet.services.job_steps import (
    PICKUP_TIMEOUT,
    Send,
    job_end,
    job_send,
    load_job_progress,
    spec_of,
)
from fleet.upstreams import seal, unseal
from inference.link_identities import new_identity
from inference.protocol.heartbeat import HeldStageStatus, ReplicaStatus
from inference.protocol.keys import TASK_LOAD_MODEL, TASK_RELEASE_STAGES
from inference.protocol.load import LinkIdentity, LoadSpec, StageOf, StageSpec
from inference.protocol.load_report import LoadFailure, LoadProgress

logger = logging.getLogger(__name__)

PURPOSE = b"helexa stage links"
OTHER_KEY = LoadFailure(
    code="load_lost", message="HELEXA_SECRET_KEY is another one since the load began"
)
HAS_LINKS = (HeldStageStatus.LISTENING, HeldStageStatus.READY)
NOT_OFFERED = LoadFailure(code="unknown_model", message="The catalogue no longer has it")


class StageLinks(msgspec.Struct, frozen=True, kw_only=True):
    identity: LinkIdentity
    certificates: dict[int, str]


def stage_orders(job: LoadJob) -> Send:
    """Sets the job's links. Save the job before calling the function that it returns."""
    far = _far_stages(job)
    identities = {index: new_identity() for index in far}
    links = StageLinks(
        identity=new_identity(),
        certificates={index: one.certificate for index, one in identities.items()},
    )
    job.stage_links = seal(msgspec.json.encode(links).decode(), django.SECRET_KEY, PURPOSE)

    def send(job: LoadJob) -> None:
        whole = _linked(spec_of(job), links)
        for index, stage in far.items():
            order = msgspec.structs.replace(
                whole,
                devices=[stage.device],
                order=load_orders().order(neuron=stage.neuron, model=job.model_name),
                evict=stage.evict,
                stage_of=StageOf(
                    index=index,
                    engine_neuron=job.neuron.name,
                    engine_certificate=links.identity.certificate,
                ),
                link_identity=identities[index],
            )
            neuron_client.send(TASK_LOAD_MODEL, stage.neuron, order)

    return send


def stage_loads_advance(*, snapshot: FleetSnapshot) -> None:
    now = timezone.now()
    for job in selectors.load_jobs_active().exclude(stage_links=""):
        if job.model is None:
            job_end(job=job, status=LoadJobStatus.FAILED, failure=NOT_OFFERED)
            continue
        far = _far_stages(job)
        held = _held_stages(job, far, snapshot)
        if failure := _load_failure(job, far, held, snapshot, now):
            job_end(job=job, status=LoadJobStatus.FAILED, failure=failure)
        elif all(index in held and held[index].stage.status in HAS_LINKS for index in far):
            _order_engine(job, {index: held[index].stage.address for index in far}, now)
        elif progress := _progress(far, held):
            load_job_progress(job=job, progress=progress, now=now)


def stage_load_call_off(*, job: LoadJob) -> bool:
    """The next tick releases its stages. ``False``: its engine is ordered, or it has ended."""
    with transaction.atomic():
        unordered = LoadJob.objects.filter(pk=job.pk).exclude(stage_links="")
        if not unordered.update(stage_links=""):
            return False
        job.refresh_from_db()  # the update has locked the row
        return job_end(job=job, status=LoadJobStatus.CANCELLED)


def held_stages_release(*, snapshot: FleetSnapshot) -> None:
    """A lost message is repeated at the next tick."""
    if not any(True for _ in snapshot.held_stages()):
        return
    jobs = selectors.load_jobs_active().exclude(kind__in=LEAVING_KINDS)
    active = {str(pk) for pk in jobs.values_list("pk", flat=True)}
    for neuron, model, job_id in set(_unwanted_stages(snapshot, active)):
        logger.info("stages of %s on %s are released: nothing has them", model, neuron)
        try:
            neuron_client.send(TASK_RELEASE_STAGES, neuron, model, job_id)
        except BrokerUnavailableError as error:
            logger.warning("stages of %s on %s are not released yet: %s", model, neuron, error)


def _order_engine(job: LoadJob, addresses: Mapping[int, str], now: datetime) -> None:
    """The caller that clears the links has the secret, and sends it once."""
    try:
        sealed = unseal(job.stage_links, django.SECRET_KEY, PURPOSE)
    except UpstreamSecretError:
        job_end(job=job, status=LoadJobStatus.FAILED, failure=OTHER_KEY)
        return
    links = msgspec.json.decode(sealed, type=StageLinks)
    claimed = LoadJob.objects.filter(pk=job.pk, status=job.status).exclude(stage_links="")
    if not claimed.update(stage_links="", reported_at=now):
        return
    spec = _linked(spec_of(job), links, addresses)
    spec = msgspec.structs.replace(spec, link_identity=links.identity)

    def send(job: LoadJob) -> None:
        neuron_client.send(TASK_LOAD_MODEL, job.neuron.name, spec)

    job_send(job=job, send=send)


def _linked(
    spec: LoadSpec, links: StageLinks, addresses: Mapping[int, str] | None = None
) -> LoadSpec:
    """Drops the evictions on other neurons: their own orders have those."""
    stages = [
        msgspec.structs.replace(
            stage,
            certificate=links.certificates.get(index, ""),
            address=(addresses or {}).get(index, ""),
            evict=[],
        )
        for index, stage in enumerate(spec.stages)
    ]
    return msgspec.structs.replace(spec, stages=stages)


def _far_stages(job: LoadJob) -> dict[int, StageSpec]:
    return {index: stage for index, stage in enumerate(job.stage_specs) if stage.neuron}


def _held_stages(
    job: LoadJob, far: Mapping[int, StageSpec], snapshot: FleetSnapshot
) -> dict[int, HeldStageView]:
    return {
        one.stage.index: one
        for one in snapshot.held_stages()
        if (one.stage.job_id, one.stage.model) == (str(job.pk), job.model_name)
        and one.stage.index in far
        and one.neuron == far[one.stage.index].neuron
    }


def _load_failure(
    job: LoadJob,
    far: Mapping[int, StageSpec],
    held: Mapping[int, HeldStageView],
    snapshot: FleetSnapshot,
    now: datetime,
) -> LoadFailure | None:
    is_late = job.created_at < now - PICKUP_TIMEOUT
    for index, stage in far.items():
        if failure := _stage_failure(stage, held.get(index), snapshot, is_late=is_late):
            return failure
    if snapshot.neuron(job.neuron.name) is None:
        return _offline_failure(job.neuron.name, "has the engine")
    return None


def _stage_failure(
    stage: StageSpec, held: HeldStageView | None, snapshot: FleetSnapshot, *, is_late: bool
) -> LoadFailure | None:
    """``is_late``: its neuron must have received its order by now."""
    if snapshot.neuron(stage.neuron) is None:
        return _offline_failure(stage.neuron, f"was to hold {_where(stage)}")
    if held is None:
        message = f"{stage.neuron} did not take up its order to hold {_where(stage)}"
        return LoadFailure(code="not_picked_up", message=message) if is_late else None
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


def _unwanted_stages(
    snapshot: FleetSnapshot, active_jobs: Collection[str]
) -> Iterator[tuple[str, str, str]]:
    """(neuron, model, job id). ``active_jobs``: read after the snapshot."""
    for one in snapshot.held_stages():
        stage = one.stage
        if not one.is_failed and stage.job_id not in active_jobs and not _is_used(one, snapshot):
            yield one.neuron, stage.model, stage.job_id


def _is_used(one: HeldStageView, snapshot: FleetSnapshot) -> bool:
    """A READY stage ends with its engine by itself, also where the engine's neuron is silent."""
    stage = one.stage
    engine = snapshot.neuron(stage.engine_neuron)
    replica = snapshot.replica_on(stage.engine_neuron, stage.model)
    is_alive = replica is not None and replica.status is not ReplicaStatus.FAILED
    if stage.status is HeldStageStatus.READY:
        return engine is None or is_alive
    return is_alive and replica is not None and replica.job_id == stage.job_id
