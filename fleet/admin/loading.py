"""The Load, Unload, Reload, Sleep and Wake actions, and their messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django.contrib import messages
from django.http import HttpRequest

from fleet import services
from fleet.errors import FleetError, ModelAlreadyLoadedError
from fleet.lifecycles import LoadJobKind, LoadJobStatus
from fleet.models import CatalogueModel, LoadJob
from metering.actor import Actor, user_actor


@dataclass(frozen=True, slots=True)
class Outcome:
    level: int
    """One of the levels of ``django.contrib.messages``."""
    message: str
    job_id: str = ""
    """The job that was started and has not ended; empty: none."""


def show_outcome(request: HttpRequest, outcome: Outcome) -> None:
    """The message stays on its page, so a job's says only that it was started."""
    started = "Started: " if outcome.job_id else ""
    messages.add_message(request, outcome.level, f"{started}{outcome.message}")


def actor_of(request: HttpRequest) -> Actor:
    return user_actor(request.user.get_username())


def load_placed(*, actor: Actor, model: CatalogueModel) -> Outcome:
    """Loads the model where placement would, unless it is loaded or on its way. A replica of an
    earlier spec is reloaded."""
    try:
        job = services.model_load_start(actor=actor, model_name=model.name)
    except ModelAlreadyLoadedError as error:
        return Outcome(messages.INFO, str(error))
    except FleetError as error:
        return Outcome(messages.ERROR, f"{model.name}: {error}")
    word = "Reloading" if job.kind == LoadJobKind.RELOAD else "Loading"
    return _started(job, f"{word} {model.name} on {job.neuron.name}. {job.note}".strip())


def load_on(*, actor: Actor, model: CatalogueModel, neuron_name: str) -> Outcome:
    try:
        job = services.model_load_start(actor=actor, model_name=model.name, neuron_name=neuron_name)
    except FleetError as error:
        return Outcome(messages.ERROR, f"{model.name}: {error}")
    return _started(job, f"Loading {model.name} on {neuron_name}")


WORDS = {
    "unload": "Unloading {model} from {neuron}",
    "reload": "Reloading {model} on {neuron}",
    "sleep": "{model} on {neuron} falls asleep",
    "wake": "Waking {model} on {neuron}",
}
ON_REPLICA: dict[str, Callable[..., LoadJob]] = {
    "unload": services.unload_job_start,
    "reload": services.reload_job_start,
    "sleep": services.sleep_job_start,
    "wake": services.wake_job_start,
}
ON_MODEL: dict[str, Callable[..., list[LoadJob]]] = {
    "unload": services.model_unload_everywhere,
    "reload": services.model_reload_everywhere,
    "sleep": services.model_sleep_everywhere,
}


def on_replica(verb: str, *, actor: Actor, model_name: str, neuron_name: str) -> Outcome:
    try:
        job = ON_REPLICA[verb](actor=actor, model_name=model_name, neuron_name=neuron_name)
    except FleetError as error:
        return Outcome(messages.ERROR, str(error))
    return _started(job, _words(verb, job))


def on_model(verb: str, *, actor: Actor, model_name: str) -> list[Outcome]:
    try:
        jobs = ON_MODEL[verb](actor=actor, model_name=model_name)
    except FleetError as error:
        return [Outcome(messages.ERROR, str(error))]
    if not jobs:
        return [Outcome(messages.INFO, f"{model_name} is not loaded anywhere")]
    return [_started(job, _words(verb, job)) for job in jobs]


def cancel(*, actor: Actor, job: LoadJob) -> Outcome:
    try:
        unload_job = services.load_job_cancel(actor=actor, job=job)
    except FleetError as error:
        return Outcome(messages.ERROR, str(error))
    return _started(unload_job, f"Cancelling the {job.kind} of {job}")


def _words(verb: str, job: LoadJob) -> str:
    words = WORDS[verb].format(model=job.model_name, neuron=job.neuron.name)
    return f"{words}. {job.note}" if job.note else words


def _started(job: LoadJob, message: str) -> Outcome:
    if job.status == LoadJobStatus.FAILED:
        return Outcome(messages.ERROR, f"{job}: {job.failure_message}")
    return Outcome(messages.INFO, message, str(job.pk))
