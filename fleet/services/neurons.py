"""The operator's actions on neurons. Each desired state is a row, audited, and published on
commit."""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

import msgspec
import redis
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from fleet import selectors
from fleet.errors import NeuronAliveError, NeuronAwayError, UnknownNeuronError
from fleet.lifecycles import NeuronStatus, RecordedReplicaStatus
from fleet.live import reading as live
from fleet.live.desired_state import (
    Admission,
    AdmissionPolicy,
    DesiredStates,
    KnownDevice,
    KnownHost,
    encode_desired_states,
)
from fleet.live.snapshot import FleetSnapshot, NeuronView
from fleet.models import FleetPolicy, Invitation, Neuron, NeuronWish, Replica
from fleet.placement.returning import unavailable_hosts
from inference.protocol import keys
from metering.audit import Actor, audit_entry_create

logger = logging.getLogger(__name__)

RESTORED_STATUSES = (
    RecordedReplicaStatus.READY,
    RecordedReplicaStatus.LOADING,
    RecordedReplicaStatus.RECOVERING,
    RecordedReplicaStatus.ASLEEP,
    RecordedReplicaStatus.AWAY,
)
"""Models with one of these when a drain begins are loaded again after it."""


def neuron_drain(*, actor: Actor, neuron_name: str, within_s: int | None = None) -> NeuronWish:
    """Running requests are cancelled after ``within_s``. Raises ``UnknownNeuronError``."""
    now = timezone.now()
    wanted = NeuronWish.objects.filter(neuron_name=neuron_name).exclude(drain_wanted_at=None)
    since = wanted.values_list("drain_wanted_at", flat=True).first()
    return _set_desired(
        actor,
        "neuron.drain",
        neuron_name,
        detail=None if within_s is None else {"within_s": within_s},
        drain_wanted_at=since or now,
        drain_ends_at=None if within_s is None else now + timedelta(seconds=within_s),
        models_before_drain=_models_to_restore(neuron_name),
    )


def neurons_overdue(*, now: datetime) -> frozenset[str]:
    overdue = NeuronWish.objects.exclude(drain_wanted_at=None).filter(drain_ends_at__lte=now)
    return frozenset(overdue.values_list("neuron_name", flat=True))


def neuron_resume(*, actor: Actor, neuron_name: str) -> NeuronWish:
    """The control loads the models from before the drain again. Raises ``UnknownNeuronError``."""
    return _set_desired(
        actor, "neuron.resume", neuron_name, drain_wanted_at=None, drain_ends_at=None
    )


def neuron_models_restored(*, neuron_name: str, model_names: Collection[str]) -> None:
    """These are back, or cannot be. Does nothing where the neuron drains again meanwhile."""
    resumed = NeuronWish.objects.select_for_update().filter(drain_wanted_at=None)
    with transaction.atomic():
        desired = resumed.filter(neuron_name=neuron_name).first()
        if desired is None:
            return
        desired.models_before_drain = [
            name for name in desired.models_before_drain if name not in model_names
        ]
        desired.save(update_fields=["models_before_drain"])


def neuron_models_to_restore_add(*, neuron_name: str, model_names: Collection[str]) -> None:
    """These are evicted for another model, and loaded there again after it."""
    with transaction.atomic():
        NeuronWish.objects.get_or_create(neuron_name=neuron_name)
        desired = NeuronWish.objects.select_for_update().get(neuron_name=neuron_name)
        known = desired.models_before_drain
        desired.models_before_drain = [*known, *(one for one in model_names if one not in known)]
        desired.save(update_fields=["models_before_drain"])


def models_to_restore() -> dict[str, tuple[str, ...]]:
    """Keys are neurons that do not drain; the last used models come first."""
    resumed = NeuronWish.objects.filter(drain_wanted_at=None).exclude(models_before_drain=[])
    return {desired.neuron_name: tuple(desired.models_before_drain) for desired in resumed}


def _models_to_restore(neuron_name: str) -> list[str]:
    """Leaves out substitutes for another neuron; adds models missing since the last drain."""
    loaded = Replica.objects.filter(neuron__name=neuron_name, status__in=RESTORED_STATUSES)
    loaded = loaded.exclude(model_name__in=_restored_elsewhere(neuron_name))
    by_use = loaded.order_by(F("last_used_at").desc(nulls_last=True), "model_name")
    names = list(by_use.values_list("model_name", flat=True))
    desired = NeuronWish.objects.filter(neuron_name=neuron_name).first()
    missing = [] if desired is None else desired.models_before_drain
    return [*names, *(name for name in missing if name not in names)]


def _restored_elsewhere(neuron_name: str) -> set[str]:
    online = Neuron.objects.filter(status=NeuronStatus.ONLINE).exclude(name=neuron_name)
    homes = {*online.values_list("name", flat=True)}
    return {one for name, models in models_to_restore().items() if name in homes for one in models}


def neuron_admit(*, actor: Actor, neuron_name: str) -> NeuronWish:
    """Raises ``UnknownNeuronError``."""
    return _set_desired(actor, "neuron.admit", neuron_name, admission=Admission.ADMITTED.value)


def neuron_refuse(*, actor: Actor, neuron_name: str) -> NeuronWish:
    """Places and routes nothing there; running requests finish. Raises ``UnknownNeuronError``."""
    return _set_desired(actor, "neuron.refuse", neuron_name, admission=Admission.REFUSED.value)


def neuron_expect(*, actor: Actor, neuron_name: str) -> NeuronWish:
    """Admits a neuron before it has reported, unless the operator has decided on it already."""
    with transaction.atomic():
        desired, created = NeuronWish.objects.get_or_create(neuron_name=neuron_name)
        if created:
            audit_entry_create(actor=actor, action="neuron.admit", object_id=neuron_name)
            transaction.on_commit(desired_states_publish)
    return desired


def neuron_remove(*, actor: Actor, neuron_name: str) -> None:
    """Forgets its jobs and Redis keys, too. Raises ``UnknownNeuronError``, ``NeuronAliveError``."""
    if live.is_reporting(neuron_name):
        raise NeuronAliveError(f"{neuron_name} reports: stop it before it is removed")
    with transaction.atomic():
        neuron = Neuron.objects.select_for_update().filter(name=neuron_name).first()
        desired = NeuronWish.objects.filter(neuron_name=neuron_name).first()
        if neuron is None and desired is None:
            raise UnknownNeuronError(f"There is no neuron named {neuron_name!r}")
        if neuron is not None and neuron.status != NeuronStatus.AWAY:
            raise NeuronAliveError(
                f"{neuron_name} is {neuron.status}: stop it before it is removed"
            )
        for row in (neuron, desired):
            if row is not None:
                row.delete()
        audit_entry_create(actor=actor, action="neuron.remove", object_id=neuron_name)
        transaction.on_commit(lambda: _forget_in_redis(neuron_name))
        transaction.on_commit(desired_states_publish)


def admission_policy_set(*, actor: Actor, policy: AdmissionPolicy) -> None:
    """Other neurons keep their admission."""
    with transaction.atomic():
        known = set(NeuronWish.objects.values_list("neuron_name", flat=True))
        NeuronWish.objects.bulk_create(
            NeuronWish(neuron_name=name)
            for name in Neuron.objects.values_list("name", flat=True)
            if name not in known
        )
        FleetPolicy.objects.update_or_create(pk=1, defaults={"admission": policy.value})
        audit_entry_create(
            actor=actor,
            action="fleet.admission",
            object_id="fleet",
            detail={"admission": policy.value},
        )
        transaction.on_commit(desired_states_publish)


def desired_state_of_first_sight(neuron_name: str) -> NeuronWish:
    """Created by the policy if there is none."""
    desired = NeuronWish.objects.filter(neuron_name=neuron_name).first()
    if desired is None:
        admission = _policy().first_admission.value
        desired, _ = NeuronWish.objects.get_or_create(
            neuron_name=neuron_name, defaults={"admission": admission}
        )
    return desired


def desired_states_publish() -> None:
    """If Redis is offline, the control's next tick does it."""
    fields = encode_desired_states(desired_states_read())
    try:
        pipeline = live.redis_client().pipeline(transaction=True)
        pipeline.delete(keys.NEURON_DESIRED_STATES)
        pipeline.hset(keys.NEURON_DESIRED_STATES, mapping=fields)
        pipeline.execute()
    except (redis.RedisError, OSError) as error:
        logger.warning("what is wished of neurons is not published yet: %s", error)


def desired_states_read() -> DesiredStates:
    now = timezone.now()
    cut_off = Invitation.objects.exclude(cut_off_at=None)
    out = set(cut_off.values_list("neuron_name", flat=True))
    neurons = {row.name: row for row in Neuron.objects.prefetch_related("devices")}
    by_neuron = {
        row.neuron_name: msgspec.structs.replace(
            row.desired_state(),
            admission=Admission.REFUSED if row.neuron_name in out else Admission(row.admission),
            host=_known_host(neurons.get(row.neuron_name), row, now),
        )
        for row in NeuronWish.objects.all()
    }
    return DesiredStates(by_neuron=by_neuron, policy=_policy())


def _known_host(neuron: Neuron | None, desired: NeuronWish, now: datetime) -> KnownHost | None:
    if neuron is None:
        return None
    is_away = neuron.status == NeuronStatus.AWAY
    return KnownHost(
        devices=tuple(
            KnownDevice(
                kind="cuda" if device.kind == "cuda" else "cpu",
                total_memory_bytes=device.total_memory_bytes,
            )
            for device in neuron.devices.all()
        ),
        away_s=_age_s(neuron.status_since, now) if is_away else None,
        draining_s=_age_s(desired.drain_wanted_at, now) if desired.drain_wanted_at else None,
    )


def _age_s(moment: datetime, now: datetime) -> float:
    return round(max(0.0, (now - moment).total_seconds()), 1)


def _policy() -> AdmissionPolicy:
    row = FleetPolicy.objects.filter(pk=1).first()
    return AdmissionPolicy.AUTOMATIC if row is None else AdmissionPolicy(row.admission)


def _set_desired(
    actor: Actor,
    action: str,
    neuron_name: str,
    *,
    detail: dict[str, Any] | None = None,
    **values: Any,
) -> NeuronWish:
    with transaction.atomic():
        desired = NeuronWish.objects.select_for_update().filter(neuron_name=neuron_name).first()
        if desired is None:
            if not Neuron.objects.filter(name=neuron_name).exists():
                raise UnknownNeuronError(f"There is no neuron named {neuron_name!r}")
            desired = desired_state_of_first_sight(neuron_name)
        before = (desired.desired_state(), desired.drain_ends_at)
        for name, value in values.items():
            setattr(desired, name, value)
        if (desired.desired_state(), desired.drain_ends_at) == before:
            desired.refresh_from_db()
            return desired
        desired.save(update_fields=list(values))
        audit_entry_create(actor=actor, action=action, object_id=neuron_name, detail=detail)
        transaction.on_commit(desired_states_publish)
    return desired


def _forget_in_redis(neuron_name: str) -> None:
    try:
        pipeline = live.redis_client().pipeline(transaction=True)
        pipeline.zrem(keys.NEURONS, neuron_name)
        pipeline.delete(
            keys.specs_key(neuron_name),
            keys.inbox_key(neuron_name),
            keys.neuron_queue(neuron_name),
        )
        pipeline.execute()
    except (redis.RedisError, OSError) as error:
        logger.warning("%s is not forgotten in Redis: %s", neuron_name, error)


def reporting_neuron(neuron_name: str, snapshot: FleetSnapshot) -> NeuronView:
    """Raises ``UnknownNeuronError``, ``NeuronAwayError``."""
    selectors.neuron_known(neuron_name)
    neuron = snapshot.neuron(neuron_name)
    if neuron is not None:
        return neuron
    host = next((one for one in unavailable_hosts(snapshot) if one.name == neuron_name), None)
    if host is None:
        raise NeuronAwayError(f"{neuron_name} does not report now: nothing can be done there")
    raise NeuronAwayError(
        f"{neuron_name} {host.how_long}: ask again when it is back", host.returns_in_s
    )
