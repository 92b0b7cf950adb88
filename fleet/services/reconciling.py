"""Carries out the decisions of ``fleet.placement.reconcile``. Each action is independent: a refused
one is decided again at the next tick."""

from __future__ import annotations

import logging
from collections import Counter
from datetime import timedelta

from django.utils import timezone

from fleet import selectors
from fleet.errors import FleetError
from fleet.lifecycles import LEAVING_KINDS, LoadJobStatus
from fleet.live.desired_state import TimeSlice
from fleet.models import LoadJob
from fleet.placement import Load
from fleet.placement.decisions import Action, Jobs, Plan, Sleep, Unload, stage_evictions
from fleet.placement.failures import LOST_ITS_ROOM, NEURON_RESTARTED
from fleet.placement.reconcile import BACKOFF, reconcile
from fleet.services.load_jobs import unload_job_start
from fleet.services.model_loads import placed_load_start, sleep_job_start
from fleet.services.neurons import (
    models_to_restore,
    neuron_models_restored,
    neurons_overdue,
)
from fleet.watch import Watched
from metering.audit import CONTROL

logger = logging.getLogger(__name__)

FAILURES_SINCE = timedelta(seconds=2 * BACKOFF.max_s)
"""Older failures delay nothing."""


def fleet_plan(*, watched: Watched, time_slices: tuple[TimeSlice, ...]) -> Plan:
    """The decisions of one tick. Writes nothing and holds no lock: deciding on a large fleet takes
    tens of milliseconds. ``time_slices`` are the active ones."""
    # Read again: an older read lacks a model that was just unloaded to stay so.
    selectors.catalogue_cache_clear()
    return reconcile(
        selectors.catalogue_by_name(),
        watched.snapshot,
        jobs=jobs_known(),
        observed=watched.observed,
        time_slices=time_slices,
    )


def plan_begin(*, plan: Plan) -> None:
    for neuron_name, model_names in plan.restored.items():
        neuron_models_restored(neuron_name=neuron_name, model_names=model_names)
    for action in plan.actions:
        try:
            _begin(action)
        except FleetError as error:  # a neuron seen before it was recorded: the next tick has it
            logger.info("%s on %s is put off: %s", action.model, action.neuron, error)


def jobs_known() -> Jobs:
    jobs: dict[bool, set[tuple[str, str]]] = {True: set(), False: set()}
    evicting: set[tuple[str, str]] = set()
    for job in selectors.load_jobs_active():
        jobs[job.kind in LEAVING_KINDS].add((job.model_name, job.neuron.name))
        evicting |= {(model, job.neuron.name) for model in job.evict}
        evicting |= {(model, neuron) for neuron, model in stage_evictions(job.stage_specs)}
    num_failures: Counter[str] = Counter()
    failed_age_s: dict[str, float] = {}
    now, succeeded = timezone.now(), set()
    ended = LoadJob.objects.filter(finished_at__gte=now - FAILURES_SINCE)
    ended = ended.exclude(kind__in=LEAVING_KINDS)
    ended = ended.exclude(failure_code__in=(LOST_ITS_ROOM, NEURON_RESTARTED))
    for job in ended.order_by("-finished_at").only("model_name", "status", "finished_at"):
        name = job.model_name
        if job.status != LoadJobStatus.FAILED:
            succeeded.add(name)
        elif name not in succeeded and job.finished_at is not None:
            num_failures[name] += 1
            failed_age_s.setdefault(name, (now - job.finished_at).total_seconds())
    return Jobs(
        loading=frozenset(jobs[False]),
        unloading=frozenset(jobs[True]),
        to_restore=models_to_restore(),
        evicting=frozenset(evicting),
        overdue=neurons_overdue(now=now),
        num_failures=dict(num_failures),
        failed_age_s=failed_age_s,
    )


def _begin(action: Action) -> None:
    match action:
        case Load():
            placed_load_start(actor=CONTROL, load=action, may_be_one_more=True)
        case Sleep():
            logger.info("%s on %s is to sleep: %s", action.model, action.neuron, action.reason)
            sleep_job_start(
                actor=CONTROL, model_name=action.model, neuron_name=action.neuron, is_planned=True
            )
        case Unload():
            logger.info("unloading %s from %s: %s", action.model, action.neuron, action.reason)
            unload_job_start(
                actor=CONTROL,
                model_name=action.model,
                neuron_name=action.neuron,
                is_planned=True,
                at_once=action.at_once,
            )
