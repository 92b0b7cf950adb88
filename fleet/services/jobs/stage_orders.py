"""Loads with stages on several neurons: orders the stages, then the engine, and releases unused
stages.

    load_job_start ─▶ identities, an order for each other neuron ─▶ their heartbeats: it listens
    each tick      ─▶ all listen: the engine's load, with their addresses and certificates
                   ─▶ one failed: the job fails, and the others are released
    unload, cancel ─▶ the engine was not ordered yet: the job ends, and all are released

``fleet.placement.held_stages`` decides. Identities are made for one load. Each secret goes to its
own neuron alone; the engine's waits in the job's row, encrypted, until its stages listen.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
from django.conf import settings as django
from django.db import transaction
from django.utils import timezone

from fleet import neuron_client, selectors
from fleet.errors import BrokerUnavailableError, UpstreamSecretError
from fleet.lifecycles import LEAVING_KINDS, LoadJobStatus
from fleet.live.load_orders import load_orders
from fleet.live.snapshot import FleetSnapshot
from fleet.models import LoadJob
from fleet.placement.held_stages import (
    StageLoad,
    StagesListen,
    StagesLoading,
    next_step,
    unwanted_stages,
)
from fleet.services.jobs.steps import (
    PICKUP_TIMEOUT,
    Send,
    job_end,
    job_send,
    load_job_progress,
    spec_of,
)
from fleet.upstreams.secret import seal, unseal
from inference.link_identities import new_identity
from inference.protocol.keys import TASK_LOAD_MODEL, TASK_RELEASE_STAGES
from inference.protocol.load import LinkIdentity, LoadSpec, StageOf, StageSpec
from inference.protocol.load_progress import LoadFailure

logger = logging.getLogger(__name__)

PURPOSE = b"helexa stage links"
OTHER_KEY = LoadFailure(
    code="load_lost", message="HELEXA_SECRET_KEY is another one since the load began"
)
NOT_OFFERED = LoadFailure(code="unknown_model", message="The catalogue no longer has it")


class StageLinks(msgspec.Struct, frozen=True, kw_only=True):
    identity: LinkIdentity
    certificates: dict[int, str]


def spans_neurons(stages: Sequence[StageSpec]) -> bool:
    return any(stage.neuron for stage in stages)


def stage_orders(job: LoadJob) -> Send:
    """Makes the identities of the job's links, and returns a function that sends the orders of its
    stages on other neurons. Save the job before calling that."""
    far = {index: stage for index, stage in enumerate(job.stage_specs) if stage.neuron}
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
    """Orders the engines of loads whose stages all listen, and fails loads of which one cannot."""
    now = timezone.now()
    for job in selectors.load_jobs_active().exclude(stage_links=""):
        if job.model is None:
            job_end(job=job, status=LoadJobStatus.FAILED, failure=NOT_OFFERED)
            continue
        load = StageLoad(
            job_id=str(job.pk),
            model=job.model_name,
            neuron=job.neuron.name,
            stages=job.stage_specs,
            is_late=job.created_at < now - PICKUP_TIMEOUT,
        )
        match next_step(load, snapshot):
            case StagesListen(addresses=addresses):
                _order_engine(job, addresses, now)
            case StagesLoading(progress=progress):
                if progress is not None:
                    load_job_progress(job=job, progress=progress, now=now)
            case LoadFailure() as failure:
                job_end(job=job, status=LoadJobStatus.FAILED, failure=failure)


def stage_load_call_off(*, job: LoadJob) -> bool:
    """Ends a load whose engine has not been ordered yet; the control's next tick releases its
    stages. ``False``: its neuron has the engine's order, or the load has ended."""
    with transaction.atomic():
        unordered = LoadJob.objects.filter(pk=job.pk).exclude(stage_links="")
        if not unordered.update(stage_links=""):
            return False
        job.refresh_from_db()  # the update has locked the row
        return job_end(job=job, status=LoadJobStatus.CANCELLED)


def held_stages_release(*, snapshot: FleetSnapshot) -> None:
    """Orders neurons to end the stages without a load or an engine. A lost message is repeated at
    the next tick."""
    if not any(True for _ in snapshot.held_stages()):
        return
    jobs = selectors.load_jobs_active().exclude(kind__in=LEAVING_KINDS)
    active = {str(pk) for pk in jobs.values_list("pk", flat=True)}
    for neuron, model, job_id in set(unwanted_stages(snapshot, active)):
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
    """The spec, with the certificate and address of each stage of another neuron, and without that
    neuron's evictions: its own order has those."""
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
