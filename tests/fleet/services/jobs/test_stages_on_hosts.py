"""Loads over several neurons, from the order of each stage to its release: load, fault, unload."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from fleet import selectors, services
from fleet.errors import CannotSleepError, PlacementRefusedError
from fleet.lifecycles import LoadJobStatus
from fleet.models import CatalogueModel, LoadJob, Neuron, NeuronWish, Replica
from fleet.placement import Wait
from fleet.services.jobs.load_measurements import layer_costs_record
from fleet.services.jobs.stage_orders import stage_load_call_off
from inference.loading.costs.packed_costs import packed
from metering.actor import COMMAND
from tests.fleet.placement.stages.stage_fleets import dense
from tests.fleet.services.jobs.stage_neurons import GIB
from tests.fleet.services.jobs.stage_world import NAMES, World

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def world(build: Any, sent: Any) -> World:
    return World(build, sent)


def newest() -> LoadJob:
    job = LoadJob.objects.order_by("-created_at").first()
    assert job is not None
    return job


def test_stages_are_ordered_first_and_the_engine_when_all_listen(world: World) -> None:
    world.tick()
    world.request()
    world.deliver()
    ((queue, order),) = world.specs
    job = newest()
    assert queue.endswith("b") and job.neuron.name == "a"
    assert order.stage_of is not None and order.stage_of.engine_neuron == "a"
    assert order.devices == ["cuda:0"] and not order.evict and order.job_id == str(job.pk)
    world.tick(works=False)
    job = newest()
    assert job.status == LoadJobStatus.RUNNING
    assert "on cuda:0 of b: downloading" in job.progress_detail
    assert isinstance(world.request(), Wait)
    world.tick()
    _, engine = world.specs[-1]
    assert engine.stage_of is None and [one.neuron for one in engine.stages] == ["", "b"]
    assert [bool(one.address) for one in engine.stages] == [False, True]
    world.settle()
    assert newest().status == LoadJobStatus.SUCCEEDED
    assert world.serving() == "a" and len(world.specs) == 2
    assert set(world.held()) == set(NAMES) and world.held()["c"] == 0
    (held,) = Neuron.objects.get(name="b").held_stages
    assert (held["model"], held["engine_neuron"], held["status"]) == ("large", "a", "ready")
    row = Replica.objects.get()
    assert (row.neuron.name, row.model_name) == ("a", "large"), "a stage is no replica"
    assert [stage["neuron"] for stage in row.report["stages"]] == ["", "b"]


def test_each_secret_goes_to_its_own_neuron_alone(world: World) -> None:
    world.load()
    (_, order), (_, engine) = world.specs
    assert order.link_identity is not None and engine.link_identity is not None
    assert order.link_identity.private_key != engine.link_identity.private_key
    assert engine.stages[1].certificate == order.link_identity.certificate
    assert order.stages[1].certificate == order.link_identity.certificate
    assert order.stage_of is not None
    assert order.stage_of.engine_certificate == engine.link_identity.certificate
    job = newest()
    assert job.stage_links == "" and "PRIVATE" not in str(job.stages)


def test_the_secret_leaves_the_row_with_the_end_of_its_job(world: World) -> None:
    world.tick()
    world.request()
    assert newest().stage_links and "PRIVATE" not in newest().stage_links, "it is encrypted"
    world.fleet.neurons["b"].is_alive = False
    world.tick()
    job = newest()
    assert (job.status, job.failure_code) == (LoadJobStatus.FAILED, "neuron_away")
    assert job.stage_links == "" and "b, which was to hold layers" in job.failure_message


def test_where_one_refuses_all_are_released(world: World) -> None:
    """Two others are needed; one of them has lost its room since it reported."""
    layer_costs_record(model=CatalogueModel.objects.get(), costs=packed(dense(60)))
    selectors.catalogue_cache_clear()
    world.tick()
    world.request()
    refusing = world.fleet.neurons["c"]
    refusing.taken_bytes = 23 * GIB
    world.deliver()
    assert world.held()["b"] > 0
    world.tick()
    job = newest()
    assert (job.status, job.failure_code) == (LoadJobStatus.FAILED, "does_not_fit")
    assert "on cuda:0 of c: there is no room" in job.failure_message
    assert world.held() == {"a": 0, "b": 0, "c": 23 * GIB}
    decision = world.request()
    assert decision.code in ("load_failed", "exceeds_device", "not_enough_memory")


def test_an_order_that_is_not_picked_up_fails_the_load(world: World) -> None:
    world.tick()
    world.request()
    world.sent.tasks.clear()  # the message is lost
    world.tick()
    assert newest().is_active
    late = timezone.now() - timedelta(seconds=80)
    LoadJob.objects.update(created_at=late, status=LoadJobStatus.RUNNING, started_at=late)
    world.tick()
    assert newest().failure_code == "not_picked_up"


@pytest.mark.parametrize("how", ["cancel", "unload"])
def test_a_load_is_called_off_before_its_engine_is_ordered(world: World, how: str) -> None:
    """Its stages listen, and are released at the next tick; nothing is loaded after all."""
    world.tick()
    world.request()
    world.deliver()
    world.fleet.work()
    job = newest()
    if how == "cancel":
        services.load_job_cancel(actor=COMMAND, job=job)
    else:
        services.model_unload_everywhere(actor=COMMAND, model_name="large")
    assert LoadJob.objects.get(pk=job.pk).status == LoadJobStatus.CANCELLED
    world.tick()
    assert not any(world.held().values())
    LoadJob.objects.update(created_at=timezone.now() - timedelta(seconds=30))
    world.settle()
    assert not any(job.is_active for job in LoadJob.objects.all())
    assert len(world.specs) == 1, "only the stage was ordered"


def test_a_load_whose_engine_is_ordered_is_cancelled_there(world: World) -> None:
    world.tick()
    world.request()
    world.deliver()
    world.fleet.work()
    snapshot = world.snapshot()
    services.stage_loads_advance(snapshot=snapshot)
    job = newest()
    services.load_job_cancel(actor=COMMAND, job=job)
    assert LoadJob.objects.get(pk=job.pk).is_active, "its neuron ends it"
    world.deliver()
    LoadJob.objects.update(created_at=timezone.now() - timedelta(seconds=30))
    world.settle()
    assert not any(job.is_active for job in LoadJob.objects.all())
    assert not any(world.held().values())


def test_a_load_is_called_off_once(world: World) -> None:
    """Not by a second caller, nor is its engine ordered by a control that read it before."""
    world.tick()
    world.request()
    world.deliver()
    world.fleet.work()
    job, same = newest(), newest()
    assert stage_load_call_off(job=job) and not stage_load_call_off(job=same)
    services.stage_loads_advance(snapshot=world.snapshot())
    assert not world.sent.tasks


def test_an_unload_leaves_nothing(world: World) -> None:
    engine = world.load()
    assert sum(1 for taken in world.held().values() if taken) == 2
    services.unload_job_start(actor=COMMAND, model_name="large", neuron_name=engine)
    world.deliver()
    world.settle()
    assert not any(world.held().values()) and not selectors.load_jobs_active()


@pytest.mark.parametrize("whose", ["engine", "stage"])
def test_it_comes_back_over_what_is_left(world: World, whose: str) -> None:
    engine = world.load()
    lost = engine if whose == "engine" else "b"
    world.fleet.neurons[lost].is_alive = False
    world.settle()
    assert not any(world.held().values()), "what is left of it has ended"
    assert world.load() in set(NAMES) - {lost}
    assert sorted(name for name, taken in world.held().items() if taken) == sorted(
        set(NAMES) - {lost}
    )


def test_it_is_not_reloaded_in_place(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = world.load()
    monkeypatch.setattr("fleet.services.jobs.reloads.live.redis_client", lambda: None)
    monkeypatch.setattr(
        "fleet.services.jobs.reloads.live.read_snapshot_sync", lambda client: world.snapshot()
    )
    with pytest.raises(PlacementRefusedError, match="lies on a and b together"):
        services.reload_job_start(actor=COMMAND, model_name="large", neuron_name=engine)
    with pytest.raises(PlacementRefusedError, match="unload it, and load it again"):
        services.model_reload_everywhere(actor=COMMAND, model_name="large")


def test_it_does_not_sleep(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = world.load()
    monkeypatch.setattr("fleet.services.jobs.model_loads.live.redis_client", lambda: None)
    monkeypatch.setattr(
        "fleet.services.jobs.model_loads.live.read_snapshot_sync", lambda client: world.snapshot()
    )
    with pytest.raises(CannotSleepError, match="lies on a and b together, and is only unloaded"):
        services.sleep_job_start(actor=COMMAND, model_name="large", neuron_name=engine)


def test_a_changed_secret_key_fails_what_waits(world: World, settings: Any) -> None:
    world.tick()
    world.request()
    world.deliver()
    world.fleet.work()
    settings.SECRET_KEY = "another one, which nobody knew before"
    world.tick()
    assert "HELEXA_SECRET_KEY" in newest().failure_message


def test_a_model_that_is_no_longer_offered_is_not_ordered(world: World) -> None:
    world.tick()
    world.request()
    world.deliver()
    CatalogueModel.objects.all().delete()
    world.tick()
    world.tick()
    assert newest().failure_code == "unknown_model" and not any(world.held().values())


def test_a_drained_neuron_holds_nothing_before_it_counts_as_empty(world: World) -> None:
    world.load()
    services.neuron_drain(actor=COMMAND, neuron_name="b")
    NeuronWish.objects.update(drain_wanted_at=timezone.now() - timedelta(seconds=10))
    world.tick()
    assert Neuron.objects.get(name="b").drained_at is None
