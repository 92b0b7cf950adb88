"""What the control decides becomes jobs, each once; what failed waits before it is tried again. A
pinned model that was unloaded by the original's path stays so until it is wanted again."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import msgspec
import pytest
from django.utils import timezone

from fleet import selectors, services
from fleet.control.watch import Watched
from fleet.lifecycles import ACTIVE_LOAD_JOB_STATUSES, LoadJobKind, LoadJobStatus
from fleet.live.snapshot import build_snapshot
from fleet.models import CatalogueModel, LoadJob, NeuronWish
from fleet.placement import Load, place
from fleet.placement.decisions import Observed, Plan
from metering.actor import COMMAND, CONTROL, GATEWAY
from metering.models import AuditEntry
from tests.cases import each_case

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def model() -> CatalogueModel:
    return services.catalogue_model_create(
        actor=COMMAND, name="tiny", source="pypi:tiny", pinned=True
    )


def tick(*heartbeats) -> Plan:
    watched = Watched(build_snapshot(heartbeats), Observed(), ())
    plan = services.fleet_plan(watched=watched, time_slices=())
    services.plan_begin(plan=plan)
    return plan


@each_case(
    ("codes", "age_s", "num_loads"),
    [
        (["download_failed"] * 2, 15, 0),
        (["download_failed"] * 2, 65, 1),
        (["download_failed", ""], 0, 1),
        (["lost_its_room", "neuron_restarted"], 0, 1),
    ],
)
def test_failures_of_a_pinned_model_put_off_the_next_try(
    model, neuron, sent, build, codes: list[str], age_s: int, num_loads: int
) -> None:
    """Placement's own tests have the times. A success, and lost room, put off nothing."""
    LoadJob.objects.all().delete()
    for code in codes:
        LoadJob.objects.create(
            model=model,
            model_name=model.name,
            neuron=neuron,
            status=LoadJobStatus.FAILED if code else LoadJobStatus.SUCCEEDED,
            failure_code=code,
            finished_at=timezone.now() - timedelta(seconds=age_s),
        )
    assert len(tick(build.heartbeat()).actions) == num_loads


def test_a_neuron_that_is_not_recorded_yet_is_tried_at_the_next_tick(model, sent, build) -> None:
    tick(build.heartbeat("new"))
    assert LoadJob.objects.count() == 0
    services.heartbeat_record(heartbeat=build.heartbeat("new"))
    tick(build.heartbeat("new"))
    assert LoadJob.objects.count() == 1


def test_what_still_runs_when_a_drains_time_is_over_ends(model, neuron, sent, build) -> None:
    drain = partial(services.neuron_drain, actor=COMMAND, neuron_name="beast")
    beat = build.heartbeat(replicas=[build.replica(stats=build.stats(in_flight=1))])
    services.heartbeat_record(heartbeat=beat)
    drain(within_s=60)
    first = NeuronWish.objects.get().drain_wanted_at
    assert tick(beat).actions == ()
    drain(within_s=0)
    drain()
    wish = NeuronWish.objects.get()
    assert (wish.drain_wanted_at, wish.drain_ends_at) == (first, None), "it takes its end back"
    drain(within_s=0)
    for _ in range(2):  # it is told again until it has gone
        tick(beat)
    unload = ("neuron.unload_model", ["tiny", True])
    assert [(name, args) for name, args, _ in sent.tasks] == [unload, unload]
    (job,) = LoadJob.objects.all()
    assert (job.kind, job.neuron.name) == (LoadJobKind.UNLOAD, "beast")
    details = AuditEntry.objects.filter(action="neuron.drain").order_by("pk")
    assert [one.detail for one in details][:2] == [{"within_s": 60}, {"within_s": 0}]
    services.neuron_resume(actor=COMMAND, neuron_name="beast")
    LoadJob.objects.all().delete()
    assert tick(build.heartbeat(replicas=[build.replica()])).actions == ()


def test_two_gateways_that_decide_differently_start_one_load(model, sent, build) -> None:
    for name in ("beast", "twin"):
        services.heartbeat_record(heartbeat=build.heartbeat(name))
    jobs = {
        services.placed_load_start(actor=GATEWAY, load=Load(neuron=name, model="tiny")).pk
        for name in ("beast", "twin", "beast")
    }
    assert len(jobs) == 1
    assert LoadJob.objects.count() == 1
    more = Load(neuron="twin", model="tiny")
    services.placed_load_start(actor=GATEWAY, load=more, may_be_one_more=True)
    assert LoadJob.objects.count() == 2


@each_case("happens", ["load", "pin", "unload failed", "request", "restart"])
def test_what_was_unloaded_to_stay_so_is_kept_again_once_it_is_wanted(
    model, neuron, build, sent, happens: str
) -> None:
    """Or once its neuron starts anew: the original loads its default models then."""

    def end_jobs() -> None:
        LoadJob.objects.filter(status__in=ACTIVE_LOAD_JOB_STATUSES).update(
            status="succeeded", finished_at=timezone.now()
        )

    def planned() -> list[str]:
        watched = Watched(build_snapshot([reported]), Observed(), ())
        plan = services.fleet_plan(watched=watched, time_slices=())
        return [action.model for action in plan.actions]

    services.heartbeat_record(heartbeat=build.heartbeat(replicas=[build.replica()]))
    services.model_unload_to_stay(actor=COMMAND, model_name="tiny", neuron_name="beast")
    end_jobs()
    reported = build.heartbeat(replicas=[])
    services.heartbeat_record(heartbeat=reported)
    assert planned() == []
    match happens:
        case "load":
            services.load_job_start(actor=CONTROL, model_name="tiny", neuron_name="beast")
        case "pin":
            services.catalogue_model_update(actor=COMMAND, model=model, changed_fields=["pinned"])
        case "unload failed":
            services.kept_unloaded_forget(model_name="tiny")
        case "request":
            catalogue = selectors.catalogue_by_name()
            snapshot = build_snapshot([build.heartbeat()])
            decision = place(catalogue["tiny"], snapshot, catalogue=catalogue)
            assert isinstance(decision, Load)
            services.placed_load_start(actor=GATEWAY, load=decision)
        case "restart":
            reported = msgspec.structs.replace(reported, epoch="another")
            services.heartbeat_record(heartbeat=reported)
    end_jobs()
    assert planned() == ["tiny"]
