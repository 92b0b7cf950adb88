"""A load over several neurons for which other models leave there: its job, orders and end."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.test import Client

from fleet import selectors, services
from fleet.lifecycles import LoadJobStatus
from fleet.models import CatalogueModel, LoadJob
from fleet.placement import Route, Wait
from fleet.services.jobs.reconciling import jobs_known
from metering.actor import COMMAND
from tests.fleet.admin.admin_pages import page
from tests.fleet.services.jobs.stage_neurons import GIB
from tests.fleet.services.jobs.test_stages_on_hosts import World, newest

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def world(build: Any, sent: Any) -> World:
    """``c`` lends nothing; ``a`` and ``b`` are full of an idle model each."""
    world = World(build, sent)
    del world.fleet.neurons["c"]
    for name, model in (("a", "old"), ("b", "other")):
        services.catalogue_model_create(actor=COMMAND, name=model, source="pypi:one")
        world.fleet.neurons[name].hold(model, 20 * GIB)
    selectors.catalogue_cache_clear()
    return world


def models(world: World) -> dict[str, list[str]]:
    """The replicas that have memory, by neuron."""
    return {
        one.name: sorted(name for name, held in one.replicas.items() if held.memory_bytes)
        for one in world.fleet.living()
    }


def test_the_job_records_what_leaves_where(
    world: World, caplog: pytest.LogCaptureFixture, admin_client: Client
) -> None:
    world.tick()
    with caplog.at_level(logging.WARNING, logger="fleet.services.jobs.steps"):
        world.request()
    job = newest()
    assert (job.neuron.name, job.evict) == ("a", ["old"])
    assert [(one.neuron, one.evict) for one in job.stage_specs] == [("", []), ("b", ["other"])]
    assert {"loading large evicts old from a", "loading large evicts other from b"} <= {
        *caplog.messages
    }
    assert jobs_known().evicting == {("old", "a"), ("other", "b")}
    assert "other leaves b" in page(admin_client, "loadjob", "change", job.pk)


def test_each_neuron_is_ordered_its_own_evictions(world: World) -> None:
    world.tick()
    world.request()
    world.deliver()
    ((queue, order),) = world.specs
    assert queue.endswith("b") and order.evict == ["other"]
    assert not any(one.evict for one in order.stages)
    assert models(world) == {"a": ["old"], "b": []}, "the engine's leave once all stages listen"
    assert isinstance(world.request(), Wait)
    assert world.load() == "a"
    _, engine = world.specs[-1]
    assert engine.evict == ["old"] and not any(one.evict for one in engine.stages)
    assert models(world) == {"a": ["large"], "b": []}
    world.settle()
    assert newest().status == LoadJobStatus.SUCCEEDED


@pytest.mark.parametrize("where", ["a", "b"])
def test_where_one_is_in_use_after_all_nothing_is_kept_and_the_load_is_tried_again(
    world: World, where: str
) -> None:
    world.tick()
    world.request()
    neuron = world.fleet.neurons[where]
    in_use = {"a": "old", "b": "other"}[where]
    neuron.busy = {in_use}
    world.deliver()
    world.settle()
    job = newest()
    assert (job.status, job.failure_code) == (LoadJobStatus.FAILED, "lost_its_room")
    assert f"{in_use} is in use" in job.failure_message
    assert in_use in models(world)[where]
    assert all(not one.memory_bytes for n in world.fleet.living() for one in n.stages)
    neuron.busy = set()
    assert world.load() == "a"
    assert models(world) == {"a": ["large"], "b": []}


def test_a_pinned_model_leaves_no_host(world: World) -> None:
    other = CatalogueModel.objects.get(name="other")
    other.pinned = True
    services.catalogue_model_update(actor=COMMAND, model=other, changed_fields=["pinned"])
    selectors.catalogue_cache_clear()
    world.tick()
    decision = world.request()
    assert not isinstance(decision, Wait | Route) and decision.code == "not_enough_memory"
    assert not LoadJob.objects.filter(model_name="large").exists()
    assert models(world) == {"a": ["old"], "b": ["other"]}
