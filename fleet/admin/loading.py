"""The actions on models, replicas and neurons, and their messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django.contrib import messages
from django.http import HttpRequest

from fleet import services
from fleet.errors import FleetError, ModelAlreadyLoadedError
from fleet.lifecycles import LoadJobKind, LoadJobStatus
from fleet.models import CatalogueModel, LoadJob, Replica
from fleet.services.jobs.model_loads import EVERYWHERE, ON_NEURON
from metering.audit import Actor, user_actor


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


def load(actor: Actor, model: CatalogueModel, neuron_name: str | None = None) -> Outcome:
    """Loads the model on that neuron, or else where placement would, unless it is loaded or on its
    way. A replica of an earlier spec is reloaded."""
    try:
        job = services.model_load_start(actor=actor, model_name=model.name, neuron_name=neuron_name)
    except ModelAlreadyLoadedError as error:
        return Outcome(messages.INFO, str(error))
    except FleetError as error:
        return Outcome(messages.ERROR, f"{model.name}: {error}")
    word = "Reloading" if job.kind == LoadJobKind.RELOAD else "Loading"
    return _started(job, f"{word} {model.name} on {job.neuron.name}")


WORDS = {
    "unload": "Unloading {model} from {neuron}",
    "reload": "Reloading {model} on {neuron}",
    "sleep": "{model} on {neuron} falls asleep",
    "wake": "Waking {model} on {neuron}",
}


def on_replica(verb: str, actor: Actor, replica: Replica) -> Outcome:
    """``verb``: one of ``WORDS``."""
    where = {"model_name": replica.model_name, "neuron_name": replica.neuron.name}
    (outcome,) = _begun(verb, lambda: [ON_NEURON[verb](actor=actor, **where)])
    return outcome


def on_model(verb: str, actor: Actor, model_name: str) -> list[Outcome]:
    """``verb``: one of ``EVERYWHERE``."""
    begun = _begun(verb, lambda: EVERYWHERE[verb](actor=actor, model_name=model_name))
    return begun or [Outcome(messages.INFO, f"{model_name} is not loaded anywhere")]


def _begun(verb: str, start: Callable[[], list[LoadJob]]) -> list[Outcome]:
    try:
        jobs = start()
    except FleetError as error:
        return [Outcome(messages.ERROR, str(error))]
    words = WORDS[verb]
    return [
        _started(job, words.format(model=job.model_name, neuron=job.neuron.name)) for job in jobs
    ]


ON_HOST: dict[str, tuple[Callable[..., object], str]] = {
    "drain": (services.neuron_drain, "is being drained"),
    "resume": (services.neuron_resume, "takes models and requests again"),
    "admit": (services.neuron_admit, "is admitted"),
    "refuse": (services.neuron_refuse, "is refused"),
    "remove": (services.neuron_remove, "is forgotten"),
}


def on_host(verb: str, actor: Actor, neuron_name: str) -> list[Outcome]:
    """``verb``: one of ``ON_HOST``."""
    service, came_of_it = ON_HOST[verb]
    try:
        service(actor=actor, neuron_name=neuron_name)
    except FleetError as error:
        return [Outcome(messages.ERROR, str(error))]
    return [Outcome(messages.SUCCESS, f"{neuron_name} {came_of_it}")]


def cancel(actor: Actor, job: LoadJob) -> Outcome:
    try:
        unload_job = services.load_job_cancel(actor=actor, job=job)
    except FleetError as error:
        return Outcome(messages.ERROR, str(error))
    return _started(unload_job, f"Cancelling the {job.kind} of {job}", with_note=False)


def _started(job: LoadJob, words: str, *, with_note: bool = True) -> Outcome:
    if job.status == LoadJobStatus.FAILED:
        return Outcome(messages.ERROR, f"{job}: {job.failure_message}")
    note = f". {job.note}" if with_note and job.note else ""
    return Outcome(messages.INFO, f"{words}{note}", str(job.pk))
