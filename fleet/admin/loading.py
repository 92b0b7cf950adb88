"""What the Load and Unload actions do, and the words they answer with."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib import messages
from django.http import HttpRequest

from fleet import live, services
from fleet.errors import FleetError
from fleet.models import CatalogueModel, Replica
from fleet.placement import Load, Reject, Route, Wait, place


@dataclass(frozen=True, slots=True)
class Outcome:
    level: int
    """Of ``django.contrib.messages``."""
    message: str


def tell(request: HttpRequest, outcome: Outcome) -> None:
    messages.add_message(request, outcome.level, outcome.message)


def load_placed(*, model: CatalogueModel, requested_by: str) -> Outcome:
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
            return load_on(model=model, neuron_name=decision.neuron, requested_by=requested_by)


def load_on(*, model: CatalogueModel, neuron_name: str, requested_by: str) -> Outcome:
    try:
        job = services.load_job_start(
            model_name=model.name, neuron_name=neuron_name, requested_by=requested_by
        )
    except FleetError as error:
        return Outcome(messages.ERROR, f"{model.name}: {error}")
    if job.is_active:
        return Outcome(messages.SUCCESS, f"Loading {model.name} on {neuron_name}")
    return Outcome(messages.ERROR, f"{model.name} on {neuron_name}: {job.failure_message}")


def unload(*, model_name: str, neuron_name: str) -> Outcome:
    try:
        services.replica_unload(model_name=model_name, neuron_name=neuron_name)
    except FleetError as error:
        return Outcome(messages.ERROR, str(error))
    return Outcome(messages.SUCCESS, f"Unloading {model_name} from {neuron_name}")


def unload_everywhere(*, model: CatalogueModel) -> list[Outcome]:
    neurons = Replica.objects.filter(model_name=model.name).values_list("neuron__name", flat=True)
    if not neurons:
        return [Outcome(messages.INFO, f"{model.name} is not loaded anywhere")]
    return [unload(model_name=model.name, neuron_name=neuron) for neuron in neurons]
