"""Loads over several neurons with requests, faults, ends and unloads in any order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import hypothesis.strategies as st
import pytest
from django.utils import timezone
from hypothesis import HealthCheck, Phase
from hypothesis import settings as runs
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fleet import selectors, services
from fleet.errors import FleetError
from fleet.models import LoadJob, Replica
from metering.actor import COMMAND
from tests.fleet.services.jobs.stage_world import NAMES, World
from tests.slow_cases import slow_but

pytestmark = pytest.mark.django_db(transaction=True)


class Walk(RuleBasedStateMachine):
    """Requests, faults, ends and unloads in any order: memory is never over, and nothing stays."""

    make: Callable[[], World]

    @initialize()
    def begin(self) -> None:
        self.world = type(self).make()
        self.world.tick()

    @rule(works=st.booleans())
    def tick(self, works: bool) -> None:
        self.world.tick(works=works)

    @rule()
    def request(self) -> None:
        self.world.request()

    @rule(name=st.sampled_from(NAMES))
    def end(self, name: str) -> None:
        """The neuron ends and is up again at once."""
        self.world.neurons[name].end()

    @rule(name=st.sampled_from(NAMES))
    def goes_or_comes(self, name: str) -> None:
        neuron = self.world.neurons[name]
        neuron.is_alive = not neuron.is_alive
        neuron.end()

    @rule(name=st.sampled_from(NAMES))
    def stages_are_killed(self, name: str) -> None:
        self.world.neurons[name].stages.clear()

    @rule()
    def messages_are_lost(self) -> None:
        self.world.sent.tasks.clear()

    @precondition(lambda self: Replica.objects.exists())
    @rule()
    def unload(self) -> None:
        row = Replica.objects.select_related("neuron").first()
        assert row is not None
        with suppress(FleetError):  # it has just gone
            services.unload_job_start(
                actor=COMMAND, model_name="large", neuron_name=row.neuron.name
            )

    @precondition(lambda self: selectors.load_jobs_active().exists())
    @rule()
    def cancel(self) -> None:
        job = selectors.load_jobs_active().first()
        assert job is not None
        with suppress(FleetError):  # an unload is not called back
            services.load_job_cancel(actor=COMMAND, job=job)

    @invariant()
    def no_memory_is_given_twice(self) -> None:
        if hasattr(self, "world"):
            assert all(one.free_bytes >= 0 for one in self.world.living())

    def teardown(self) -> None:
        """Once all are there, and requests are old, the model loads, and goes again."""
        if not hasattr(self, "world"):
            return
        world = self.world
        for neuron in world.neurons.values():
            if not neuron.is_alive:
                neuron.end()
            neuron.is_alive = True
        world.settle()
        past = timezone.now() - timedelta(seconds=90)
        for job in selectors.load_jobs_active():
            LoadJob.objects.filter(pk=job.pk).update(
                created_at=past, reported_at=past if job.reported_at else None
            )
        world.settle()
        assert not selectors.load_jobs_active().exists()
        used = {one.spec.job_id for n in world.living() for one in n.replicas.values()}
        for neuron in world.living():
            assert {one.spec.job_id for one in neuron.stages if one.memory_bytes} <= used
            neuron.stages = [one for one in neuron.stages if one.memory_bytes]  # failures age
            neuron.replicas = {
                name: one for name, one in neuron.replicas.items() if one.memory_bytes
            }
        engine = world.load()
        services.unload_job_start(actor=COMMAND, model_name="large", neuron_name=engine)
        world.deliver()
        world.settle()
        assert not any(world.held().values()), world.held()
        assert not LoadJob.objects.exclude(stage_links="").exists()


@pytest.mark.parametrize("num_walks", slow_but([2, 15], 2))
def test_any_order_of_loads_and_faults_leaves_nothing(
    build: Any, sent: Any, num_walks: int
) -> None:
    walk = type("WalkOfThree", (Walk,), {"make": staticmethod(lambda: World(build, sent))})
    run_state_machine_as_test(
        walk,
        settings=runs(
            max_examples=num_walks,
            stateful_step_count=20,
            deadline=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
