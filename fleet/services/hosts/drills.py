"""Faults that an operator injects in a neuron which allows it, so that recovery can be seen."""

from __future__ import annotations

from django.db import transaction

from fleet import neuron_client, selectors
from fleet.errors import (
    DrillOrderError,
    DrillsNotAllowedError,
    NeuronAwayError,
    ReplicaNotFoundError,
)
from fleet.live import reading as live
from fleet.models import Replica
from inference.protocol.drills import (
    FAULTS_OF_MODELS,
    FAULTS_THAT_LAST,
    MAX_DRILL_S,
    Fault,
    FaultOrder,
)
from inference.settings.neuron import FAULT_DRILLS
from metering.actor import Actor
from metering.services.audit import audit_entry_create

DEFAULT_DRILL_S = 15


def fault_inject(
    *,
    actor: Actor,
    neuron_name: str,
    fault: str,
    model_name: str | None = None,
    lasts_s: int | None = None,
) -> FaultOrder:
    """Audited, then sent: the neuron's log and its replicas show what becomes of it.
    ``model_name`` may be an alias.

    Raises ``UnknownNeuronError``, ``UnknownModelError``, ``NeuronAwayError``,
    ``DrillsNotAllowedError``, ``DrillOrderError``, ``ReplicaNotFoundError``,
    ``BrokerUnavailableError``, ``SnapshotUnavailableError``.
    """
    neuron = selectors.neuron_known(neuron_name)
    order = _order(fault, model_name, lasts_s)
    _check_allowed(neuron.name)
    is_loaded = Replica.objects.filter(neuron=neuron, model_name=order.model).exists()
    if order.fault in (Fault.KILL_ENGINE, Fault.STALL_ENGINE) and not is_loaded:
        raise ReplicaNotFoundError(f"{order.model} is not loaded on {neuron.name}")
    if order.fault is Fault.FAIL_LOAD:
        selectors.model_enabled(order.model or "")
    detail = {"fault": order.fault.value, "model": order.model, "seconds": order.lasts_s}
    with transaction.atomic():  # what could not be sent is not in the audit
        audit_entry_create(
            actor=actor,
            action="neuron.drill",
            object_id=neuron.name,
            detail={name: value for name, value in detail.items() if value is not None},
        )
        neuron_client.send_fault(neuron_name=neuron.name, order=order)
    return order


def _order(fault: str, model_name: str | None, lasts_s: int | None) -> FaultOrder:
    """Raises ``DrillOrderError``."""
    if fault not in list(Fault):
        known = ", ".join(Fault)
        raise DrillOrderError("fault", f"{fault!r} is no fault; there are {known}")
    known_fault = Fault(fault)
    if (known_fault in FAULTS_OF_MODELS) != (model_name is not None):
        needs = "needs" if model_name is None else "takes no"
        raise DrillOrderError("model", f"{fault} {needs} model")
    if known_fault not in FAULTS_THAT_LAST:
        if lasts_s is not None:
            raise DrillOrderError("seconds", f"{fault} happens at once; leave 'seconds' out")
        return FaultOrder(fault=known_fault, model=_resolved(model_name))
    lasts_s = DEFAULT_DRILL_S if lasts_s is None else lasts_s
    if not 1 <= lasts_s <= MAX_DRILL_S:
        raise DrillOrderError("seconds", f"'seconds' is to be from 1 to {MAX_DRILL_S}")
    return FaultOrder(fault=known_fault, model=_resolved(model_name), lasts_s=lasts_s)


def _resolved(model_name: str | None) -> str | None:
    entry = None if model_name is None else selectors.catalogue_find(model_name)
    return model_name if entry is None else entry.name


def _check_allowed(neuron_name: str) -> None:
    """Raises ``NeuronAwayError``, ``DrillsNotAllowedError``."""
    for report in live.read_live_fleet(live.redis_client()).reports:
        if report.name == neuron_name and report.heartbeat is not None:
            if not report.heartbeat.allows_drills:
                raise DrillsNotAllowedError(
                    f"{neuron_name} allows no faults: set {FAULT_DRILLS.name}=1 there and restart "
                    "its neuron"
                )
            return
    raise NeuronAwayError(f"{neuron_name} is away")
