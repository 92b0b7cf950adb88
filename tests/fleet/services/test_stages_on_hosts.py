"""Loads over several neurons: order, fault, unload, evictions, and all of it in any order."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import hypothesis.strategies as st
import pytest
from django.utils import timezone
from hypothesis import HealthCheck, given
from hypothesis import settings as runs

from fleet import selectors, services
from fleet.errors import CannotSleepError, FleetError, PlacementRefusedError
from fleet.lifecycles import LoadJobStatus
from fleet.live import reading as live
from fleet.models import CatalogueModel, LoadJob, Neuron, NeuronWish, Replica
from fleet.placement import Wait
from fleet.services.reconciling import jobs_known
from fleet.services.stage_orders import stage_load_call_off
from metering.audit import COMMAND
from tests.fleet.admin.admin_pages import page
from tests.fleet.conftest import offer
from tests.fleet.services.stage_world import GIB, NAMES, World
from tests.slow_cases import slow_but

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def world(build: Any, sent: Any) -> World:
    return World(build, sent)


def newest() -> LoadJob:
    return LoadJob.objects.latest("created_at")


def test_stages_are_ordered_first_and_the_engine_when_all_listen(world: World) -> None:
    world.tick()
    world.request()
    world.deliver()
    ((queue, order),) = world.specs
    job, of = newest(), order.stage_of
    assert queue.endswith("b") and job.neuron.name == of.engine_neuron == "a"
    assert order.devices == ["cuda:0"] and not order.evict and order.job_id == str(job.pk)
    assert job.stage_links and "PRIVATE" not in f"{job.stage_links}{job.stages}", "it is encrypted"
    world.tick(works=False)
    job = newest()
    assert job.status == LoadJobStatus.RUNNING
    assert "on cuda:0 of b: downloading" in job.progress_detail
    assert isinstance(world.request(), Wait)
    world.tick()
    _, engine = world.specs[-1]
    assert engine.stage_of is None and [one.neuron for one in engine.stages] == ["", "b"]
    assert [bool(one.address) for one in engine.stages] == [False, True]
    # Each secret goes to its own neuron alone, and leaves the row.
    own, engines = order.link_identity, engine.link_identity
    assert own.private_key != engines.private_key
    assert engine.stages[1].certificate == order.stages[1].certificate == own.certificate
    assert of.engine_certificate == engines.certificate
    world.settle()
    assert (newest().status, newest().stage_links) == (LoadJobStatus.SUCCEEDED, "")
    assert world.load() == "a" and len(world.specs) == 2
    assert set(world.held()) == set(NAMES) and world.held()["c"] == 0
    (held,) = Neuron.objects.get(name="b").held_stages
    assert (held["model"], held["engine_neuron"], held["status"]) == ("large", "a", "ready")
    row = Replica.objects.get()
    assert (row.neuron.name, row.model_name) == ("a", "large"), "a stage is no replica"
    assert [stage["neuron"] for stage in row.report["stages"]] == ["", "b"]


@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        ("away", "neuron_away", "b, which was to hold layers"),
        ("lost", "not_picked_up", ""),
        ("key", "load_lost", "HELEXA_SECRET_KEY"),
        ("removed", "unknown_model", "no longer has it"),
    ],
)
def test_a_load_whose_stages_cannot_be_had_fails(world, settings, how, code, message) -> None:
    world.tick()
    world.request()
    match how:
        case "away":
            world.neurons["b"].is_alive = False
        case "lost":
            world.sent.tasks.clear()
            world.tick()
            assert newest().is_active
            late = timezone.now() - timedelta(seconds=80)
            LoadJob.objects.update(created_at=late, status=LoadJobStatus.RUNNING, started_at=late)
        case "key":
            world.deliver()
            settings.SECRET_KEY = "another one, which nobody knew before"
        case "removed":
            world.deliver()
            CatalogueModel.objects.all().delete()
    world.tick()
    job = newest()
    assert (job.status, job.failure_code, job.stage_links) == (LoadJobStatus.FAILED, code, "")
    assert message in job.failure_message
    world.tick()
    assert not any(world.held().values())


@pytest.mark.parametrize("how", ["cancel", "unload", "ordered"])
def test_a_load_is_called_off_once_before_or_after_its_engine_is_ordered(world, how) -> None:
    world.tick()
    world.request()
    world.deliver()
    world.work()
    job, same = newest(), newest()
    if how == "cancel":
        assert stage_load_call_off(job=job) and not stage_load_call_off(job=same)
        services.stage_loads_advance(snapshot=world.snapshot())
        assert not world.sent.tasks, "nor is it ordered by a control that read it before"
    elif how == "unload":
        services.model_unload_everywhere(actor=COMMAND, model_name="large")
    else:
        services.stage_loads_advance(snapshot=world.snapshot())
        services.load_job_cancel(actor=COMMAND, job=newest())
        world.deliver()
    job.refresh_from_db()
    assert job.is_active == (how == "ordered"), "its neuron ends it then"
    world.tick()
    assert how == "ordered" or not any(world.held().values())
    LoadJob.objects.update(created_at=timezone.now() - timedelta(seconds=30))
    world.settle()
    assert not any(job.is_active for job in LoadJob.objects.all())
    assert not any(world.held().values())
    assert len(world.specs) == 1 + (how == "ordered"), "only the stage was ordered"


def test_what_it_is_refused_and_when_a_drained_neuron_is_empty(world, monkeypatch) -> None:
    where = {"actor": COMMAND, "model_name": "large", "neuron_name": world.load()}
    with monkeypatch.context() as patched:
        patched.setattr(live, "redis_client", lambda: None)
        patched.setattr(live, "read_snapshot_sync", lambda client: world.snapshot())
        with pytest.raises(PlacementRefusedError, match="lies on a and b together"):
            services.reload_job_start(**where)
        with pytest.raises(PlacementRefusedError, match="unload it, and load it again"):
            services.model_reload_everywhere(actor=COMMAND, model_name="large")
        with pytest.raises(CannotSleepError, match="on a and b together, and is only unloaded"):
            services.sleep_job_start(**where)
    services.neuron_drain(actor=COMMAND, neuron_name="b")
    NeuronWish.objects.update(drain_wanted_at=timezone.now() - timedelta(seconds=10))
    world.tick()
    assert Neuron.objects.get(name="b").drained_at is None


@pytest.fixture
def full(world: World) -> World:
    """``c`` lends nothing; ``a`` and ``b`` are full of an idle model each."""
    del world.neurons["c"]
    for name, model in (("a", "old"), ("b", "other")):
        offer(model, source="pypi:one")
        world.neurons[name].hold(model, 20 * GIB)
    selectors.catalogue_cache_clear()
    return world


def models(full: World) -> dict[str, list[str]]:
    """The replicas that have memory, by neuron."""
    return {
        neuron.name: sorted(name for name, one in neuron.replicas.items() if one.memory_bytes)
        for neuron in full.living()
    }


def test_each_neuron_is_ordered_its_own_evictions_which_the_job_records(full, admin_client) -> None:
    full.tick()
    full.request()
    job = newest()
    assert (job.neuron.name, job.evict) == ("a", ["old"])
    assert [(one.neuron, one.evict) for one in job.stage_specs] == [("", []), ("b", ["other"])]
    assert jobs_known().evicting == {("old", "a"), ("other", "b")}
    assert "other leaves b" in page(admin_client, "loadjob", "change", job.pk)
    full.deliver()
    ((queue, order),) = full.specs
    assert queue.endswith("b") and order.evict == ["other"]
    assert not any(one.evict for one in order.stages)
    assert models(full) == {"a": ["old"], "b": []}, "the engine's leave once all stages listen"
    assert isinstance(full.request(), Wait)
    assert full.load() == "a"
    _, engine = full.specs[-1]
    assert engine.evict == ["old"] and not any(one.evict for one in engine.stages)
    assert models(full) == {"a": ["large"], "b": []}
    full.settle()
    assert newest().status == LoadJobStatus.SUCCEEDED


@pytest.mark.parametrize(("where", "in_use"), [("a", "old"), ("b", "other")])
def test_where_one_is_in_use_the_load_is_tried_again(full, where, in_use) -> None:
    full.tick()
    full.request()
    neuron = full.neurons[where]
    neuron.busy = {in_use}
    full.deliver()
    full.settle()
    job = newest()
    assert (job.status, job.failure_code) == (LoadJobStatus.FAILED, "lost_its_room")
    assert f"{in_use} is in use" in job.failure_message
    assert in_use in models(full)[where]
    assert all(not one.memory_bytes for n in full.living() for one in n.stages)
    neuron.busy = set()
    assert full.load() == "a"
    assert models(full) == {"a": ["large"], "b": []}


def do(world: World, what: str, name: str) -> None:
    neuron = world.neurons[name]
    match what:
        case "tick" | "idle_tick":
            world.tick(works=what == "tick")
        case "request":
            world.request()
        case "end":  # and is up again at once
            neuron.end()
        case "go_or_come":
            neuron.is_alive = not neuron.is_alive
            neuron.end()
        case "kill":
            neuron.stages.clear()
        case "lose":
            world.sent.tasks.clear()
        case "unload" | "cancel":
            with suppress(FleetError):  # it has just gone; an unload is not called back
                if what == "cancel" and (job := selectors.load_jobs_active().first()):
                    services.load_job_cancel(actor=COMMAND, job=job)
                elif what == "unload" and (row := Replica.objects.first()):
                    where = {"model_name": "large", "neuron_name": row.neuron.name}
                    services.unload_job_start(actor=COMMAND, **where)


def ends_empty(world: World) -> None:
    """Once all are there, and requests are old, the model loads, and goes again."""
    for neuron in world.neurons.values():
        if not neuron.is_alive:
            neuron.end()
        neuron.is_alive = True
    world.settle()
    past = timezone.now() - timedelta(seconds=90)
    selectors.load_jobs_active().update(created_at=past)
    selectors.load_jobs_active().exclude(reported_at=None).update(reported_at=past)
    world.settle()
    assert not selectors.load_jobs_active().exists()
    used = {one.spec.job_id for n in world.living() for one in n.replicas.values()}
    for neuron in world.living():
        assert {one.spec.job_id for one in neuron.stages if one.memory_bytes} <= used
        neuron.stages = [one for one in neuron.stages if one.memory_bytes]  # failures age
        neuron.replicas = {name: one for name, one in neuron.replicas.items() if one.memory_bytes}
    where = {"model_name": "large", "neuron_name": world.load()}
    services.unload_job_start(actor=COMMAND, **where)
    world.deliver()
    world.settle()
    assert not any(world.held().values()), world.held()
    assert not LoadJob.objects.exclude(stage_links="").exists()


DEEDS = ("tick", "tick", "idle_tick", "request", "request", "end", "go_or_come", "kill")
DEEDS += ("lose", "unload", "cancel")


@pytest.mark.parametrize("num_walks", slow_but([2, 15], 2))
def test_any_order_of_loads_and_faults_leaves_nothing(build, sent, num_walks) -> None:
    @runs(max_examples=num_walks, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(st.tuples(st.sampled_from(DEEDS), st.sampled_from(NAMES)), min_size=8, max_size=20)
    )
    def walk(deeds: list[tuple[str, str]]) -> None:
        world = World(build, sent)
        world.tick()
        for what, name in deeds:
            do(world, what, name)
            assert all(one.free_bytes >= 0 for one in world.living())
        ends_empty(world)

    walk()
