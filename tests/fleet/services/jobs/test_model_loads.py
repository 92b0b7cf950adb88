"""A model that an operator loads on a named neuron: the evictions for it, and the messages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from fleet import services
from fleet.api.access import problem_of
from fleet.errors import ModelRecoveringError, NeuronAwayError, PlacementRefusedError
from fleet.live.snapshot import FleetSnapshot
from fleet.models import LoadJob, Neuron
from fleet.services.jobs.reconciling import jobs_known
from inference.protocol.heartbeat import DeviceInfo, ReplicaState, ReplicaStatus
from inference.protocol.keys import heartbeat_key
from inference.protocol.load_progress import LoadFailure
from metering.actor import COMMAND
from metering.api.problems import problem_response
from tests.fleet.services.jobs.conftest import names

pytestmark = pytest.mark.django_db(transaction=True)

GIB = 1024**3


@pytest.fixture
def full(publish, build, sent):
    """beast has one card, of which ``old`` holds nearly all."""
    offer = services.catalogue_model_create
    offer(actor=COMMAND, name="new", source="pypi:new", vram_mb=4096)

    def full(
        *others: ReplicaState,
        pinned: bool = False,
        vram_mb: int | None = None,
        cards: tuple[DeviceInfo, ...] = (),
        **changes: Any,
    ) -> None:
        offer(actor=COMMAND, name="old", source="pypi:old", pinned=pinned, vram_mb=vram_mb)
        old = build.replica(
            model="old",
            devices=["cuda:0"],
            memory_bytes=6 * GIB,
            stats=build.stats(**changes),
            last_used_unix_s=1_700_000_000.0 - 60,
        )
        card = build.device(kind="cuda", total_memory_bytes=8 * GIB, free_memory_bytes=GIB)
        services.heartbeat_record(
            heartbeat=publish(devices=[card, *cards], replicas=[old, *others])
        )

    return full


def test_a_host_that_is_away_is_refused_at_once(full, redis_db, sent) -> None:
    """Whether a load, a reload or devices were asked for: the refusal has the time of a retry."""
    full()
    services.silent_neurons_mark_away(snapshot=FleetSnapshot(neurons=()))
    Neuron.objects.update(status_since=timezone.now() - timedelta(seconds=70))
    redis_db.delete(heartbeat_key("beast"))
    services.desired_states_publish()
    named = {"actor": COMMAND, "neuron_name": "beast"}
    for start in (
        load,
        lambda: services.model_load_start(model_name="new", devices=["cuda:0"], **named),
        lambda: services.reload_job_start(model_name="old", **named),
        lambda: services.model_download_start(model_name="new", **named),
    ):
        with pytest.raises(NeuronAwayError, match="beast has been away for 7") as caught:
            start()
        assert 70 <= (caught.value.retry_after_s or 0) < 80
        answer = problem_response(problem_of(caught.value), {})
        assert 70 <= int(answer["Retry-After"]) <= 80
    with pytest.raises(ModelRecoveringError, match="new can only be loaded on beast"):
        services.model_load_start(actor=COMMAND, model_name="new")
    assert sent.tasks == []


def load() -> LoadJob:
    return services.model_load_start(actor=COMMAND, model_name="new", neuron_name="beast")


def test_a_load_that_the_control_would_undo_is_refused(full, publish, build, sent) -> None:
    """It used to succeed, and what was loaded, or the other copy, was gone seconds later."""
    full()
    room = build.device(kind="cuda", total_memory_bytes=64 * GIB, free_memory_bytes=60 * GIB)
    services.heartbeat_record(heartbeat=publish(name="beauty", devices=[room]))

    def refusal(model_name: str = "old") -> str:
        with pytest.raises(PlacementRefusedError) as refused:
            services.model_load_start(
                actor=COMMAND, model_name=model_name, neuron_name="beauty", devices=["cuda:0"]
            )
        assert sent.tasks == [] and not LoadJob.objects.filter(neuron__name="beauty").exists()
        return str(refused.value)

    assert "old is loaded on beast, and by its max_replicas on 1 at most" in refusal()
    services.catalogue_model_create(
        actor=COMMAND, name="tied", source="pypi:tied", pinned_on=("beast",)
    )
    assert "tied may run on beast only, by its pinned_on" in refusal("tied")
    services.neuron_drain(actor=COMMAND, neuron_name="beauty")
    assert refusal() == refusal("new") == "beauty is draining: resume it first"
    services.neuron_refuse(actor=COMMAND, neuron_name="beauty")
    assert refusal() == "beauty is not admitted: admit it first"
    services.neuron_admit(actor=COMMAND, neuron_name="beauty")
    services.neuron_resume(actor=COMMAND, neuron_name="beauty")
    services.neuron_drain(actor=COMMAND, neuron_name="beast")
    services.model_load_start(actor=COMMAND, model_name="old", neuron_name="beauty")
    assert len(sent.tasks) == 1, "what is to leave its neuron anyway is no other copy"


def test_a_named_device_that_is_no_card_of_its_least_size_is_refused(publish, build, sent) -> None:
    devices = [
        build.device(kind=kind, index=index, total_memory_bytes=gib * GIB)
        for kind, index, gib in (("cpu", 0, 64), ("cuda", 0, 8), ("cuda", 1, 24))
    ]
    services.heartbeat_record(heartbeat=publish(devices=devices))
    large = {"name": "large", "source": "pypi:large", "min_device_vram_mb": 20_000}
    services.catalogue_model_create(actor=COMMAND, **large)
    named = {"actor": COMMAND, "model_name": "large", "neuron_name": "beast"}
    for device, why in (("cpu", "is no card"), ("cuda:0", "has 8,589,934,592")):
        with pytest.raises(PlacementRefusedError, match=f"by its min_device_vram_mb, .* {why}"):
            services.model_load_start(**named, devices=[device])
    assert sent.tasks == []
    assert services.model_load_start(**named, devices=["cuda:1"]).devices == ["cuda:1"]


@pytest.mark.parametrize("has_left", [False, True])
def test_what_leaves_for_it_moves_to_free_memory_and_both_jobs_report_it(
    full, publish, build, sent, monkeypatch: pytest.MonkeyPatch, has_left: bool
) -> None:
    """Even where it has left once the load is sent."""
    full()
    free = build.device(kind="cuda", total_memory_bytes=8 * GIB, free_memory_bytes=7 * GIB)
    services.heartbeat_record(heartbeat=publish(name="beauty", devices=[free]))
    send = sent.send_task

    def send_and_leave(*args: Any, **options: Any) -> Any:
        publish(devices=[free], replicas=[])
        return send(*args, **options)

    if has_left:
        monkeypatch.setattr(sent, "send_task", send_and_leave)
    job = load()
    assert job.note == "old makes room and moves to beauty"
    moved = LoadJob.objects.get(model_name="old")
    assert (moved.neuron.name, moved.devices, moved.evict) == ("beauty", ["cuda:0"], [])
    assert moved.note == "Moves from beast, where new needs its room"
    assert names(sent) == [("load_model", "beast"), ("load_model", "beauty")]
    assert load().pk == job.pk and LoadJob.objects.count() == 2


@pytest.mark.parametrize("why", ["in use", "pinned", "failed", "another card"])
def test_an_idle_model_leaves_for_it_and_what_is_in_use_or_pinned_stays(
    full, build, sent, why: str
) -> None:
    if why in ("in use", "pinned"):
        full(**({"pinned": True} if why == "pinned" else {"queue_depth": 2}))
        with pytest.raises(PlacementRefusedError, match=r"needs 4,294,967,296 byt.*1,073,741,824"):
            load()
        assert sent.tasks == []
        return
    if why == "failed":  # one that failed there, for good or not, makes room when it is asked for
        failure = LoadFailure(code="bad_file", message="half a file")
        full(build.replica(model="new", status=ReplicaStatus.FAILED, failure=failure))
    else:
        room = {"total_memory_bytes": 5 * GIB, "free_memory_bytes": 3500 * 1024**2}
        full(vram_mb=3300, cards=(build.device(kind="cuda", index=1, **room),))
    job = load()
    assert (job.devices, job.evict) == (["cuda:0"], ["old"])
    assert sent.tasks[0][1][0]["evict"] == ["old"]
    if why == "another card":  # its load is the control's: a neuron has a model once
        assert job.note == "old makes room and moves to cuda:1 of beast"
        assert jobs_known().to_restore == {"beast": ("old",)}
        assert jobs_known().evicting == {("old", "beast")}
        assert LoadJob.objects.count() == 1 == len(sent.tasks)
