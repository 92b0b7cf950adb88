"""The status command."""

from __future__ import annotations

import json

import pytest

from fleet import services
from fleet.models import LoadJob
from inference.protocol.heartbeat import ReplicaStatus
from metering.actor import COMMAND
from tests.fleet.commands.conftest import RunCommand

pytestmark = pytest.mark.django_db(transaction=True)


def test_status_ends_with_1_while_something_is_wrong(run_command: RunCommand, beat, build) -> None:
    with pytest.raises(SystemExit) as ended:
        beat(replicas=[build.replica(status=ReplicaStatus.FAILED)])
        run_command("status")
    assert ended.value.code == 1
    assert "! tiny failed on beast" in run_command.out
    beat(replicas=[build.replica()])
    assert "ready" in run_command("status")
    assert json.loads(run_command("status", "--json"))["attention"] == []


def test_status_shows_stages_of_other_hosts_models(run_command: RunCommand, beat, build) -> None:
    beat(devices=[build.device(kind="cuda")], stages=[build.stage()])
    (row,) = (line for line in run_command("status").splitlines() if line.startswith("large"))
    assert " ".join(row.split()) == "large beast 20 to 31 cuda:0 3.0 GiB attic ready"
    (neuron,) = json.loads(run_command("status", "--json"))["neurons"]
    (held,) = neuron["held_stages"]
    assert (held["model"], held["engine_neuron"], held["last_layer"]) == ("large", "attic", 32)
    beat(devices=[build.device(kind="cuda")])
    assert "stage of" not in run_command("status")


def test_status_shows_the_notes_of_jobs(run_command: RunCommand, beat, sent) -> None:
    beat()
    services.catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny")
    job = services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")
    LoadJob.objects.filter(pk=job.pk).update(note="Moves from attic, where huge needs its room")
    assert "\ntiny on beast: Moves from attic, where huge" in run_command("status")


def test_status_does_not_promise_a_model_that_no_host_can_run(
    run_command: RunCommand, beat
) -> None:
    beat()
    services.catalogue_model_create(actor=COMMAND, name="small", source="pypi:small")
    offered = run_command("models", "add", "huge", "pypi:huge", "--set", "min_device_vram_mb=48000")
    assert "huge is offered, and no host can run it: it needs a card of 46.9 GiB" in offered
    with pytest.raises(SystemExit) as ended:
        run_command("status")
    assert ended.value.code == 1
    assert "! no host can run huge: it needs a card of 46.9 GiB" in run_command.out
    assert "Loaded on request: small\n" in run_command.out
