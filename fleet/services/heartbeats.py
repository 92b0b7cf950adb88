"""Records the neurons' heartbeats in the database. Runs each second for every neuron, so an idle
fleet costs reads only: a row is written on changes, and otherwise about every ten seconds. Each
write is idempotent and independent; the next tick repairs a missed one."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from django.db import (
    DataError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    models,
    transaction,
)
from django.utils import timezone

from fleet import selectors
from fleet.lifecycles import NeuronStatus, RecordedReplicaStatus
from fleet.live.desired_state import Admission
from fleet.live.reports import Report, log_refusal
from fleet.live.snapshot import FleetSnapshot, build_snapshot, protocol_problems
from fleet.models import CatalogueModel, Device, Neuron, NeuronWish, Replica
from fleet.services.job_reports import adapter_unload_advance, load_job_advance, load_job_lose
from fleet.services.load_measurements import (
    kept_unloaded_forget_neuron,
    prefill_averages_record,
)
from fleet.services.neurons import desired_state_of_first_sight
from inference.protocol.heartbeat import (
    DeviceInfo,
    HeldStage,
    HeldStageStatus,
    NeuronHeartbeat,
    ReplicaState,
    ReplicaStatus,
)
from inference.protocol.keys import NEURON_NAME
from inference.version import VERSION

logger = logging.getLogger(__name__)

REFRESH_EVERY = timedelta(seconds=10)
DRAIN_SETTLES_AFTER = timedelta(seconds=3)
"""Two heartbeats and the age of a gateway's snapshot."""


def report_record(*, report: Report) -> bool:
    """A faulty report is its neuron's problem alone; an offline database is raised."""
    problem = report.problem
    if report.heartbeat is not None:
        try:
            with transaction.atomic():
                heartbeat_record(heartbeat=report.heartbeat)
            return True
        except (DataError, IntegrityError, ValueError, OverflowError) as error:
            problem = log_refusal(report.name, f"it cannot be stored: {error}")
        except (OperationalError, InterfaceError):
            raise
        except Exception:
            logger.exception("the report of %s could not be recorded", report.name)
            problem = "its report could not be recorded; see the control's log"
    problem_record(report.name, problem)
    return False


def report_refresh(*, report: Report) -> None:
    """Records the free memory, and that the host was seen, where nothing else happens."""
    heartbeat = report.heartbeat
    neuron = Neuron.objects.filter(name=report.name).first()
    if heartbeat is None or neuron is None:
        return
    free_bytes = heartbeat.host.free_memory_bytes
    _write(neuron, {"last_seen_at": timezone.now(), "free_memory_bytes": free_bytes})
    _devices_record(neuron, heartbeat.devices, refresh=True)


def heartbeat_record(*, heartbeat: NeuronHeartbeat) -> None:
    now = timezone.now()
    desired = desired_state_of_first_sight(heartbeat.name)
    earlier = Neuron.objects.filter(name=heartbeat.name).first()
    is_restarted = earlier is not None and earlier.epoch != heartbeat.epoch
    neuron = _neuron_record(earlier, heartbeat, desired, now)
    _devices_record(neuron, heartbeat.devices, refresh=neuron.last_seen_at == now)
    _replicas_record(neuron, heartbeat.replicas)
    if is_restarted:
        _after_restart(neuron, heartbeat)
    _load_jobs_advance(neuron, heartbeat, now)
    prefill_averages_record(neuron=neuron, states=heartbeat.replicas)


def silent_neurons_mark_away(*, snapshot: FleetSnapshot) -> int:
    alive = [neuron.name for neuron in snapshot.neurons]
    silent = Neuron.objects.exclude(status=NeuronStatus.AWAY).exclude(name__in=alive)
    return sum(neuron_mark_away(neuron=neuron) for neuron in silent)


def neuron_mark_away(*, neuron: Neuron) -> bool:
    """Its replicas' state is unknown then. Returns whether this call marked it."""
    now = timezone.now()
    marked = Neuron.objects.filter(pk=neuron.pk, status=neuron.status).update(
        status=NeuronStatus.AWAY,
        status_since=now,
        is_leaving=False,
        drained_at=None,
        held_stages=[],
    )
    if marked:
        logger.warning("neuron %s is away", neuron.name)
        Replica.objects.filter(neuron=neuron).update(
            status=RecordedReplicaStatus.AWAY, status_since=now, **NO_WORK
        )
    return marked == 1


def problem_record(name: str, problem: str) -> None:
    """Creates a missing row, so that the operator finds it; an invalid name gets none."""
    if not NEURON_NAME.fullmatch(name):
        return
    now = timezone.now()
    unknown = {"started_at": now, "last_seen_at": now, "status": NeuronStatus.AWAY}
    neuron, _ = Neuron.objects.get_or_create(name=name, defaults={"status_since": now, **unknown})
    _write(neuron, {"problems": [problem]})


def _after_restart(neuron: Neuron, heartbeat: NeuronHeartbeat) -> None:
    """A new process' first report names the loads that it resumes: the others are lost."""
    kept_unloaded_forget_neuron(neuron_name=neuron.name)
    resumed = {state.job_id for state in heartbeat.replicas}
    for job in selectors.load_jobs_active().filter(neuron=neuron):
        if str(job.pk) not in resumed:
            load_job_lose(job=job)


def _neuron_record(
    neuron: Neuron | None, heartbeat: NeuronHeartbeat, desired: NeuronWish, now: datetime
) -> Neuron:
    """The row, with ``last_seen_at == now`` when it was written."""
    status = _status(heartbeat, desired)
    described: dict[str, Any] = {
        "epoch": heartbeat.epoch,
        "version": heartbeat.version,
        "started_at": _moment(heartbeat.started_unix_s),
        "hostname": heartbeat.host.hostname,
        "operating_system": heartbeat.host.os,
        "num_cores": heartbeat.host.num_cores,
        "total_memory_bytes": heartbeat.host.total_memory_bytes,
        "problems": [
            *heartbeat.host.problems,
            *heartbeat.thread_problems,
            *protocol_problems(heartbeat),
            *_version_problems(heartbeat.version),
        ],
        "held_stages": [_held_stage(one) for one in heartbeat.stages],
        "is_leaving": heartbeat.is_leaving,
        "status": status,
    }
    seen = {"last_seen_at": now, "free_memory_bytes": heartbeat.host.free_memory_bytes}
    if neuron is None:
        neuron, created = Neuron.objects.get_or_create(
            name=heartbeat.name, defaults={"status_since": now, **described, **seen}
        )
        if created:
            logger.info("neuron %s is new (%s)", neuron.name, neuron.status)
            return neuron
    if neuron.status != status:
        described["status_since"] = now
        logger.info("neuron %s was %s and is %s", neuron.name, neuron.status, status)
    described["drained_at"] = _drained_at(neuron, heartbeat, desired, now)
    if _differs(neuron, described) or now - neuron.last_seen_at >= REFRESH_EVERY:
        _write(neuron, described | seen)
    return neuron


def _held_stage(stage: HeldStage) -> dict[str, Any]:
    return {
        "model": stage.model,
        "engine_neuron": stage.engine_neuron,
        "device": stage.device,
        "first_layer": stage.layers[0],
        "last_layer": stage.layers[1],
        "status": stage.status.value,
        "memory_bytes": stage.memory_bytes,
        "failure": stage.failure.message if stage.failure else "",
    }


def _version_problems(version: str) -> list[str]:
    if version == VERSION:
        return []
    return [f"it runs helexa {version or 'of an unknown version'}, and the control {VERSION}"]


def _status(heartbeat: NeuronHeartbeat, desired: NeuronWish) -> NeuronStatus:
    if desired.admission != Admission.ADMITTED:
        return NeuronStatus.REFUSED
    if desired.drain_wanted_at is not None or heartbeat.is_leaving:
        return NeuronStatus.DRAINING
    return NeuronStatus.ONLINE


def _drained_at(
    neuron: Neuron, heartbeat: NeuronHeartbeat, desired: NeuronWish, now: datetime
) -> datetime | None:
    """The moment since which it is idle. Not before ``DRAIN_SETTLES_AFTER``: gateways must have
    read the drain, and requests sent until then must show in a report."""
    if desired.drain_wanted_at is None or now - desired.drain_wanted_at < DRAIN_SETTLES_AFTER:
        return None
    is_busy = any(_is_busy(state) for state in heartbeat.replicas)
    is_busy |= any(one.status is not HeldStageStatus.FAILED for one in heartbeat.stages)
    return None if is_busy else neuron.drained_at or now


def _is_busy(state: ReplicaState) -> bool:
    if state.status in (ReplicaStatus.LOADING, ReplicaStatus.RECOVERING):
        return True
    return state.stats is not None and state.stats.in_flight + state.stats.queue_depth > 0


def _devices_record(neuron: Neuron, infos: list[DeviceInfo], *, refresh: bool) -> None:
    """``refresh``: also write the free memory, which differs each second."""
    rows = {(row.kind, row.index): row for row in Device.objects.filter(neuron=neuron)}
    for info in infos:
        values = _device_values(info)
        row = rows.pop((info.kind, info.index), None)
        if row is None:
            Device.objects.create(neuron=neuron, kind=info.kind, index=info.index, **values)
            continue
        stable = {name: value for name, value in values.items() if name != "free_memory_bytes"}
        if refresh or _differs(row, stable):
            _write(row, values)
    for gone in rows.values():
        gone.delete()


def _device_values(info: DeviceInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "total_memory_bytes": info.total_memory_bytes,
        "installed_memory_bytes": info.installed_memory_bytes,
        "free_memory_bytes": info.free_memory_bytes,
        "compute_capability": info.compute_capability or "",
        "driver": info.driver or "",
    }


def _replicas_record(neuron: Neuron, states: list[ReplicaState]) -> None:
    rows = {row.model_name: row for row in Replica.objects.filter(neuron=neuron)}
    for state in states:
        row = rows.pop(state.model, None)
        if row is None:
            model = CatalogueModel.objects.filter(name=state.model).first()
            Replica.objects.create(
                neuron=neuron, model_name=state.model, model=model, **_replica_values(state)
            )
        else:
            _write(row, _replica_values(state))
    for gone in rows.values():
        gone.delete()


COUNTS = (
    "in_flight",
    "queue_depth",
    "kv_blocks_used",
    "kv_blocks_total",
    "num_drafted_tokens",
    "num_accepted_drafts",
)
"""Fields of ``EngineStats``."""
NO_WORK: dict[str, Any] = {**dict.fromkeys(COUNTS, 0), "decode_tokens_per_s": 0.0}


def _replica_values(state: ReplicaState) -> dict[str, Any]:
    values: dict[str, Any] = {
        "job_id": state.job_id,
        "spec_digest": state.spec_digest,
        "devices": list(state.devices),
        "memory_bytes": state.memory_bytes,
        "host_memory_bytes": state.host_memory_bytes,
        "status": RecordedReplicaStatus(state.status.value),
        "status_since": _moment(state.since_unix_s),
        "num_restarts": state.num_restarts,
        "report": msgspec.to_builtins(state.report),
        "failure_code": state.failure.code if state.failure else "",
        "failure_message": state.failure.message if state.failure else "",
    }
    if state.last_used_unix_s is not None:
        values["last_used_at"] = _moment(state.last_used_unix_s)
    if state.stats is None:  # it sleeps, or its engine has exited
        return values | {"adapters": [], **NO_WORK}
    values["adapters"] = list(state.stats.adapters)
    values |= {name: getattr(state.stats, name) for name in COUNTS}
    # An idle engine reports the speed of its last seconds of work.
    rate = state.stats.decode_tokens_per_s if state.stats.in_flight else 0.0
    return values | {"decode_tokens_per_s": round(rate, 1)}


def _load_jobs_advance(neuron: Neuron, heartbeat: NeuronHeartbeat, now: datetime) -> None:
    by_model = {state.model: state for state in heartbeat.replicas}
    for job in selectors.load_jobs_active().filter(neuron=neuron):
        base = None if job.model is None else job.model.settings().base
        if base is not None:
            adapter_unload_advance(job=job, base=by_model.get(base), now=now)
        else:
            load_job_advance(
                job=job,
                state=by_model.get(job.model_name),
                now=now,
                snapshot=lambda: build_snapshot([heartbeat]),
            )


def _differs(row: models.Model, values: dict[str, Any]) -> bool:
    return any(getattr(row, name) != value for name, value in values.items())


def _write(row: models.Model, values: dict[str, Any]) -> None:
    changed = [name for name, value in values.items() if getattr(row, name) != value]
    for name in changed:
        setattr(row, name, values[name])
    if changed:
        # A deleted row is not created again.
        of_same_kind = type(row)._default_manager.filter(pk=row.pk)
        of_same_kind.update(**{name: values[name] for name in changed})


def _moment(unix_s: float) -> datetime:
    return datetime.fromtimestamp(unix_s, tz=UTC)
