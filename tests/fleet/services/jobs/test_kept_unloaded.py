"""A pinned model that was unloaded by the original's path stays so until it is wanted again."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from django.utils import timezone

from fleet import selectors, services
from fleet.control.watch import Watched
from fleet.lifecycles import ACTIVE_LOAD_JOB_STATUSES
from fleet.live.snapshot import build_snapshot
from fleet.models import CatalogueModel, LoadJob
from fleet.placement import Load, place
from fleet.placement.decisions import Observed
from inference.protocol.heartbeat import NeuronHeartbeat
from metering.actor import COMMAND, CONTROL, GATEWAY

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def model() -> CatalogueModel:
    return services.catalogue_model_create(
        actor=COMMAND, name="tiny", source="pypi:tiny", pinned=True
    )


@pytest.fixture
def idle(model, build, sent) -> NeuronHeartbeat:
    """What the neuron reports once the model was unloaded from it to stay so."""
    services.heartbeat_record(heartbeat=build.heartbeat(replicas=[build.replica()]))
    services.model_unload_to_stay(actor=COMMAND, model_name="tiny", neuron_name="beast")
    end_jobs()
    reported: NeuronHeartbeat = build.heartbeat(replicas=[])
    services.heartbeat_record(heartbeat=reported)
    return reported


def end_jobs() -> None:
    LoadJob.objects.filter(status__in=ACTIVE_LOAD_JOB_STATUSES).update(
        status="succeeded", finished_at=timezone.now()
    )


def planned(heartbeat: NeuronHeartbeat) -> list[str]:
    """The loads that the control decides on next."""
    watched = Watched(build_snapshot([heartbeat]), Observed(), ())
    return [action.model for action in services.fleet_plan(watched=watched, time_slices=()).actions]


def test_it_stays_unloaded(idle) -> None:
    assert planned(idle) == []


def _load(model: CatalogueModel) -> None:
    services.load_job_start(actor=CONTROL, model_name="tiny", neuron_name="beast")
    end_jobs()


def _pin_again(model: CatalogueModel) -> None:
    services.catalogue_model_update(actor=COMMAND, model=model, changed_fields=["pinned"])


def _unload_failed(model: CatalogueModel) -> None:
    services.kept_unloaded_forget(model_name="tiny")


@pytest.mark.parametrize("happens", [_load, _pin_again, _unload_failed])
def test_it_is_kept_again_once_it_is_wanted(
    model, idle, happens: Callable[[CatalogueModel], None]
) -> None:
    happens(model)
    assert planned(idle) == ["tiny"]


def test_it_is_kept_again_once_its_neuron_starts_anew(idle) -> None:
    """The original loads its default models then."""
    restarted = msgspec.structs.replace(idle, epoch="another")
    services.heartbeat_record(heartbeat=restarted)
    assert planned(restarted) == ["tiny"]


def test_a_request_loads_it(model, idle) -> None:
    catalogue = selectors.catalogue_by_name()
    decision = place(catalogue["tiny"], build_snapshot([idle]), catalogue=catalogue)
    assert isinstance(decision, Load)
    services.placed_load_start(actor=GATEWAY, load=decision)
    end_jobs()
    assert planned(idle) == ["tiny"]


def test_another_replica_of_it_is_kept(model, build, sent) -> None:
    model.min_replicas, model.max_replicas = 2, 2
    services.catalogue_model_update(
        actor=COMMAND, model=model, changed_fields=["min_replicas", "max_replicas"]
    )
    services.heartbeat_record(heartbeat=build.heartbeat(replicas=[build.replica()]))
    services.model_unload_to_stay(actor=COMMAND, model_name="tiny", neuron_name="beast")
    end_jobs()
    assert planned(build.heartbeat(replicas=[])) == ["tiny"]
    assert planned(build.heartbeat(replicas=[build.replica()])) == []
