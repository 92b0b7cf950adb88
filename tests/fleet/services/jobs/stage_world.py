"""Three neurons, none of which holds a model alone, and a control that ticks."""

from __future__ import annotations

from typing import Any

import msgspec

from fleet import selectors, services
from fleet.control.watch import Watched
from fleet.live.snapshot import FleetSnapshot, build_snapshot
from fleet.models import CatalogueModel, LoadJob, Neuron
from fleet.placement import Route, place
from fleet.placement.decisions import Observed
from fleet.services.jobs.load_measurements import layer_costs_record
from fleet.services.jobs.model_loads import placed_load_start
from inference.loading.costs.packed_costs import packed
from inference.protocol.load import LoadSpec
from metering.actor import COMMAND, GATEWAY
from tests.fleet.placement.stages.stage_fleets import dense
from tests.fleet.services.jobs.stage_neurons import GIB, FakeFleet, FakeNeuron

NAMES = ("a", "b", "c")
GB = 40
"""The model, which no neuron of 24 GiB holds, and any two do."""


class World:
    """The three neurons, and a control that ticks."""

    def __init__(self, build: Any, sent: Any) -> None:
        self.fleet = FakeFleet(*(FakeNeuron(name, build, 24 * GIB) for name in NAMES))
        self.sent = sent
        self.specs: list[tuple[str, LoadSpec]] = []
        """Each load that was sent, with its neuron's queue."""
        LoadJob.objects.all().delete()
        Neuron.objects.all().delete()
        CatalogueModel.objects.all().delete()
        selectors.catalogue_cache_clear()
        self.sent.tasks.clear()
        services.catalogue_model_create(
            actor=COMMAND, name="large", source="huggingface:org/large", spread="fleet"
        )
        layer_costs_record(model=CatalogueModel.objects.get(), costs=packed(dense(GB)))
        selectors.catalogue_cache_clear()

    def snapshot(self) -> FleetSnapshot:
        return build_snapshot([one.heartbeat() for one in self.fleet.living()])

    def tick(self, *, works: bool = True) -> None:
        """A second: neurons work and report, the control records and decides, messages arrive."""
        if works:
            self.fleet.work()
        beats = [one.heartbeat() for one in self.fleet.living()]
        for beat in beats:
            services.heartbeat_record(heartbeat=beat)
        snapshot = build_snapshot(beats)
        services.silent_neurons_mark_away(snapshot=snapshot)
        services.stage_loads_advance(snapshot=snapshot)
        services.load_jobs_expire()
        services.held_stages_release(snapshot=snapshot)
        plan = services.fleet_plan(watched=Watched(snapshot, Observed(), ()), time_slices=())
        services.plan_begin(plan=plan)
        self.deliver()

    def deliver(self) -> None:
        tasks, self.sent.tasks = self.sent.tasks, []
        for task, arguments, options in tasks:
            if task == "neuron.load_model":
                self.specs.append((options["queue"], msgspec.convert(arguments[0], LoadSpec)))
        self.fleet.deliver(tasks)

    def request(self) -> Any:
        """What a gateway does for a request."""
        entry = selectors.catalogue_find("large")
        assert entry is not None
        decision = place(entry, self.snapshot(), catalogue=selectors.catalogue_by_name())
        if hasattr(decision, "stages"):
            placed_load_start(actor=GATEWAY, load=decision)
        return decision

    def serving(self) -> str | None:
        decision = self.request()
        return decision.neuron if isinstance(decision, Route) else None

    def held(self) -> dict[str, int]:
        return {one.name: one.total_bytes - one.free_bytes for one in self.fleet.living()}

    def load(self) -> str:
        """Loads the model. Returns its engine's neuron."""
        self.tick()
        for _ in range(6):
            if (neuron := self.serving()) is not None:
                return neuron
            self.tick()
        raise AssertionError(list(LoadJob.objects.values("status", "failure_message")))

    def settle(self) -> None:
        for _ in range(4):
            self.tick()
