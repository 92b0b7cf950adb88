"""The board's buttons. A button's value is a verb and its object:

load model tiny      unload replica 17      drain neuron beast      cancel job 8f3c…
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from django.contrib import messages
from django.contrib.auth.models import AbstractUser
from django.core.exceptions import PermissionDenied, ValidationError

from fleet import services
from fleet.admin.loading import WORDS, Outcome, cancel, load, on_host, on_model, on_replica
from fleet.catalogue import SettingValue
from fleet.dashboard.rows import job_progress
from fleet.models import CatalogueModel, LoadJob, Replica
from fleet.overview.lines import JobLine
from metering.audit import Actor, user_actor

OPERATE = "fleet.change_cataloguemodel"
CHANGE_NEURON = "fleet.change_neuron"
LEVELS = {"succeeded": messages.SUCCESS, "failed": messages.ERROR, "cancelled": messages.WARNING}
GONE = Outcome(messages.WARNING, "That is not there any more")


def act(user: AbstractUser, command: str) -> list[Outcome]:
    """Runs a command. Raises ``PermissionDenied``; an unknown command changes nothing."""
    verb, _, about = command.partition(" ")
    noun, _, name = about.partition(" ")
    found = COMMANDS.get((verb, noun))
    if found is None:
        return [Outcome(messages.ERROR, "There is no such action")]
    permission, action = found
    if not user.has_perm(permission):
        raise PermissionDenied
    return action(user_actor(user.get_username()), name)


def job_outcome(job: JobLine) -> Outcome:
    words = job_progress(job, with_neuron=True, with_failure=False).text
    job_id = job.id if job.is_active else ""
    return Outcome(LEVELS.get(job.status, messages.INFO), f"{job.model}: {words}", job_id)


def _load_model(actor: Actor, name: str) -> list[Outcome]:
    models = CatalogueModel.objects.filter(name=name)
    return [load(actor, model) for model in models] or [GONE]


def _change_model(
    settings: Mapping[str, SettingValue], came_of_it: str, actor: Actor, name: str
) -> list[Outcome]:
    model = CatalogueModel.objects.filter(name=name).first()
    if model is None:
        return [GONE]
    model.assign(settings)
    services.catalogue_model_update(actor=actor, model=model, changed_fields=list(settings))
    return [Outcome(messages.SUCCESS, f"{name} {came_of_it}")]


def _on_replica(verb: str, actor: Actor, pk: str) -> list[Outcome]:
    if not (pk.isascii() and pk.isdigit() and len(pk) < 19):
        return [GONE]
    replicas = Replica.objects.select_related("neuron").filter(pk=int(pk))
    return [on_replica(verb, actor, one) for one in replicas] or [GONE]


def _cancel_job(actor: Actor, pk: str) -> list[Outcome]:
    try:
        jobs = list(LoadJob.objects.select_related("neuron").filter(pk=pk))
    except (ValidationError, ValueError):
        return [GONE]
    return [cancel(actor, job) for job in jobs] or [GONE]


Action = Callable[[Actor, str], list[Outcome]]
COMMANDS: dict[tuple[str, str], tuple[str, Action]] = {
    ("load", "model"): (OPERATE, _load_model),
    **{
        (verb, "model"): (OPERATE, partial(on_model, verb))
        for verb in ("unload", "reload", "sleep")
    },
    **{(verb, "replica"): (OPERATE, partial(_on_replica, verb)) for verb in WORDS},
    ("pin", "model"): (OPERATE, partial(_change_model, {"pinned": True}, "is kept loaded")),
    ("unpin", "model"): (
        OPERATE,
        partial(_change_model, {"pinned": False}, "is loaded when it is requested"),
    ),
    ("cancel", "job"): (OPERATE, _cancel_job),
    **{
        (verb, "neuron"): (CHANGE_NEURON, partial(on_host, verb))
        for verb in ("drain", "resume", "admit")
    },
}
