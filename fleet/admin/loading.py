"""What the Load and Unload actions do, and the words they answer with."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib import messages
from django.http import HttpRequest

from fleet import live, services
from fleet.errors import FleetError
from fleet.models import CatalogueModel, Replica
from fleet.placement import Load, Reject, Route, Wait, place
from metering.actor import Actor, user_actor


@dataclass(frozen=True, slots=True)
class Outcome:
    level: int
    """Of ``django.contrib.messages``."""
    message: str


def tell(request: HttpRequest, outcome: Outcome) -> None:
    messages.add_message(request, outcome.level, outcome.message)


def actor_of(request: HttpRequest) -> Actor:
    return user_actor(request.user.get_username())


def load_placed(*, actor: Actor, model: CatalogueModel) -> Outcome:
    """Loads the model where placement would, unless it is loaded or on its way."""
    try:
        decision = place(model.entry(), live.read_snapshot_sync(live.redis_client()))
    except FleetError as error:
        return Outcome(messages.ERROR, f"{model.name}: {error}")
    match decision:
        case Route():
            return Outcome(messages.INFO, f"{model.name} is loaded on {decision.neuron} already")
        case Wait():
            return Outcome(messages.INFO, decision.reason)
        case Reject():
            return Outcome(messages.ERROR, decision.message)
        case Load():
            return load_on(actor=actor, model=model, neuron_name=decision.neuron)


def load_on(*, actor: Actor, model: CatalogueModel, neuron_name: str) -> Outcome:
    try:
        job = services.load_job_start(actor=actor, model_name=model.name, neuron_name=neuron_name)
    except FleetError as error:
        return Outcome(messages.ERROR, f"{model.name}: {error}")
    if job.is_active:
        return Outcome(messages.SUCCESS, f"Loading {model.name} on {neuron_name}")
    return Outcome(messages.ERROR, f"{model.name} on {neuron_name}: {job.failure_message}")


def unload(*, actor: Actor, model_name: str, neuron_name: str) -> Outcome:
    try:
        services.replica_unload(actor=actor, model_name=model_name, neuron_name=neuron_name)
    except FleetError as error:
        return Outcome(messages.ERROR, str(error))
    return Outcome(messages.SUCCESS, f"Unloading {model_name} from {neuron_name}")


def unload_everywhere(*, actor: Actor, model: CatalogueModel) -> list[Outcome]:
    neurons = Replica.objects.filter(model_name=model.name).values_list("neuron__name", flat=True)
    if not neurons:
        return [Outcome(messages.INFO, f"{model.name} is not loaded anywhere")]
    return [unload(actor=actor, model_name=model.name, neuron_name=neuron) for neuron in neurons]
