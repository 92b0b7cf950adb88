"""What the board's buttons do. A button's value is a verb and what it is about:

load model tiny      unload replica 17      drain neuron beast      cancel job 8f3c…
"""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import messages
from django.contrib.auth.models import AbstractUser
from django.core.exceptions import PermissionDenied, ValidationError

from fleet import services
from fleet.admin.loading import (
    Outcome,
    cancel,
    load_placed,
    put_to_sleep,
    put_to_sleep_everywhere,
    reload,
    unload,
    unload_everywhere,
    wake,
)
from fleet.errors import FleetError
from fleet.models import CatalogueModel, LoadJob, Replica
from metering.actor import Actor, user_actor

OPERATE = "fleet.change_cataloguemodel"
CHANGE_NEURON = "fleet.change_neuron"
GONE = Outcome(messages.WARNING, "That is not there any more")


def act(user: AbstractUser, command: str) -> list[Outcome]:
    """Run a command. Raises ``PermissionDenied``; an unknown command changes nothing."""
    verb, _, about = command.partition(" ")
    noun, _, name = about.partition(" ")
    found = COMMANDS.get((verb, noun))
    if found is None:
        return [Outcome(messages.ERROR, "There is no such action")]
    permission, action = found
    if not user.has_perm(permission):
        raise PermissionDenied
    return action(user_actor(user.get_username()), name)


def _load_model(actor: Actor, name: str) -> list[Outcome]:
    return [load_placed(actor=actor, model=model) for model in _models(name)] or [GONE]


def _unload_model(actor: Actor, name: str) -> list[Outcome]:
    outcomes = [unload_everywhere(actor=actor, model=model) for model in _models(name)]
    return outcomes[0] if outcomes else [GONE]


def _reload_model(actor: Actor, name: str) -> list[Outcome]:
    """All that is outdated."""
    try:
        jobs = services.model_reload_everywhere(actor=actor, model_name=name)
    except FleetError as error:
        return [Outcome(messages.ERROR, str(error))]
    if not jobs:
        return [Outcome(messages.INFO, f"Nothing of {name} is outdated")]
    return [Outcome(messages.SUCCESS, f"Reloading {job}. {job.note}".strip()) for job in jobs]


def _unload_replica(actor: Actor, pk: str) -> list[Outcome]:
    return [
        unload(actor=actor, model_name=one.model_name, neuron_name=one.neuron.name)
        for one in _replicas(pk)
    ] or [GONE]


def _reload_replica(actor: Actor, pk: str) -> list[Outcome]:
    return [
        reload(actor=actor, model_name=one.model_name, neuron_name=one.neuron.name)
        for one in _replicas(pk)
    ] or [GONE]


def _sleep_model(actor: Actor, name: str) -> list[Outcome]:
    return put_to_sleep_everywhere(actor=actor, model_name=name)


def _sleep_replica(actor: Actor, pk: str) -> list[Outcome]:
    return [
        put_to_sleep(actor=actor, model_name=one.model_name, neuron_name=one.neuron.name)
        for one in _replicas(pk)
    ] or [GONE]


def _wake_replica(actor: Actor, pk: str) -> list[Outcome]:
    return [
        wake(actor=actor, model_name=one.model_name, neuron_name=one.neuron.name)
        for one in _replicas(pk)
    ] or [GONE]


def _drain(actor: Actor, name: str) -> list[Outcome]:
    return _set_desired(services.neuron_drain, actor, name, "is being drained")


def _resume(actor: Actor, name: str) -> list[Outcome]:
    return _set_desired(services.neuron_resume, actor, name, "takes models and requests again")


def _admit(actor: Actor, name: str) -> list[Outcome]:
    return _set_desired(services.neuron_admit, actor, name, "is admitted")


def _cancel_job(actor: Actor, pk: str) -> list[Outcome]:
    try:
        jobs = list(LoadJob.objects.select_related("neuron").filter(pk=pk))
    except (ValidationError, ValueError):
        return [GONE]
    return [cancel(actor=actor, job=job) for job in jobs] or [GONE]


def _set_desired(
    service: Callable[..., object], actor: Actor, name: str, came_of_it: str
) -> list[Outcome]:
    try:
        service(actor=actor, neuron_name=name)
    except FleetError as error:
        return [Outcome(messages.ERROR, str(error))]
    return [Outcome(messages.SUCCESS, f"{name} {came_of_it}")]


def _models(name: str) -> list[CatalogueModel]:
    return list(CatalogueModel.objects.filter(name=name))


def _replicas(pk: str) -> list[Replica]:
    if not (pk.isascii() and pk.isdigit() and len(pk) < 19):
        return []
    return list(Replica.objects.select_related("neuron").filter(pk=int(pk)))


Action = Callable[[Actor, str], list[Outcome]]
COMMANDS: dict[tuple[str, str], tuple[str, Action]] = {
    ("load", "model"): (OPERATE, _load_model),
    ("unload", "model"): (OPERATE, _unload_model),
    ("reload", "model"): (OPERATE, _reload_model),
    ("unload", "replica"): (OPERATE, _unload_replica),
    ("reload", "replica"): (OPERATE, _reload_replica),
    ("sleep", "model"): (OPERATE, _sleep_model),
    ("sleep", "replica"): (OPERATE, _sleep_replica),
    ("wake", "replica"): (OPERATE, _wake_replica),
    ("cancel", "job"): (OPERATE, _cancel_job),
    ("drain", "neuron"): (CHANGE_NEURON, _drain),
    ("resume", "neuron"): (CHANGE_NEURON, _resume),
    ("admit", "neuron"): (CHANGE_NEURON, _admit),
}
