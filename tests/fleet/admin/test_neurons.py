"""The admin's lists and rows, what each shows and costs, and who may look; and the operator's
actions on neurons, invitations and the policy."""

from __future__ import annotations

import html
import re

import pytest
from django.urls import reverse

from fleet import services
from fleet.lifecycles import NeuronStatus
from fleet.live.snapshot import FleetSnapshot
from fleet.models import (
    Alias,
    CatalogueModel,
    Device,
    FleetPolicy,
    Invitation,
    LoadJob,
    Neuron,
    NeuronWish,
    Replica,
)
from inference.protocol import keys
from inference.protocol.joining import decode_joining
from metering.actor import COMMAND
from metering.models import AuditEntry
from tests.fleet.admin.admin_pages import act, page
from tests.fleet.services.hosts.invited_hosts import shared_redis
from tests.metering.callers import staff

__all__ = ["shared_redis"]

GIB = 1024**3
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def neuron(beat) -> Neuron:
    beat()
    return Neuron.objects.get()


def act_on(client, action: str, neuron: Neuron) -> str:
    return html.unescape(act(client, "neuron", action, neuron))


def test_drained_refused_and_back(admin_client, neuron) -> None:
    assert "beast is being drained" in act_on(admin_client, "drain", neuron)
    assert NeuronWish.objects.get().desired_state().drain
    act_on(admin_client, "refuse", neuron)
    assert NeuronWish.objects.get().admission == "refused"
    act_on(admin_client, "admit", neuron)
    assert "takes models and requests again" in act_on(admin_client, "resume", neuron)
    desired = NeuronWish.objects.get()
    assert (desired.drain_wanted_at, desired.admission) == (None, "admitted")
    actors = set(AuditEntry.objects.values_list("actor", flat=True))
    assert actors == {"user:admin"}


def test_a_living_one_is_not_removed_and_a_dead_one_is(admin_client, neuron, redis_db) -> None:
    assert "stop it before it is removed" in act_on(admin_client, "remove", neuron)
    redis_db.delete(keys.heartbeat_key("beast"))
    services.silent_neurons_mark_away(snapshot=FleetSnapshot(neurons=()))
    assert Neuron.objects.get().status == NeuronStatus.AWAY
    assert "beast is forgotten" in act_on(admin_client, "remove", neuron)
    assert not Neuron.objects.exists()


def test_an_invitation_is_shown_once_and_revoked(admin_client, shared_redis) -> None:
    add = reverse("admin:fleet_invitation_add")
    services.share_record(actor=COMMAND, address="", is_tls=False, certificate="")
    refused = admin_client.post(add, {"neuron_name": "beast", "address": ""})
    assert "no other host can reach this Redis" in html.unescape(refused.content.decode())
    services.share_record(actor=COMMAND, address="10.0.0.5:7000", is_tls=False, certificate="")
    assert b"letters, digits" in admin_client.post(add, {"neuron_name": "a b"}).content
    shown = admin_client.post(add, {"neuron_name": "beast", "address": ""})
    assert "no-store" in shown["Cache-Control"]
    found = re.search(r"neuron --join (hx1\.[\w-]+)", shown.content.decode())
    assert found is not None
    assert decode_joining(found[1]).neuron == "beast"
    assert "neuron-beast" in shared_redis.acl_users()
    assert "beast" in page(admin_client, "invitation")
    row = Invitation.objects.get()
    assert row.secret_sha256 not in page(admin_client, "invitation", "change", row.pk)
    admin_client.post(reverse("admin:fleet_invitation_delete", args=[row.pk]), {"post": "yes"})
    assert not Invitation.objects.exists()
    assert "neuron-beast" not in shared_redis.acl_users()


def test_the_policy(admin_client) -> None:
    add = reverse("admin:fleet_fleetpolicy_add")
    assert admin_client.post(add, {"admission": "click"}).status_code == 302
    assert FleetPolicy.objects.get().admission == "click"
    assert admin_client.get(add).status_code == 403
    change = reverse("admin:fleet_fleetpolicy_change", args=[1])
    admin_client.post(change, {"admission": "automatic"})
    assert FleetPolicy.objects.get().admission == "automatic"
    assert AuditEntry.objects.filter(action="fleet.admission").count() == 2


NOUNS = ("neuron", "device", "cataloguemodel", "alias", "replica", "loadjob")


def test_who_may_only_look_changes_nothing(model, neuron, sent) -> None:
    client = staff("looker", "view_neuron", "view_cataloguemodel", "view_loadjob")
    act_on(client, "drain", neuron)
    assert NeuronWish.objects.get().drain_wanted_at is None
    assert client.get(reverse("admin:fleet_invitation_add")).status_code == 403
    assert "tiny" in page(client, "cataloguemodel")
    act(client, "cataloguemodel", "load_selected", model)
    assert not LoadJob.objects.exists()


def test_every_list_and_row_shows(admin_client, model, beat, build, sent) -> None:
    services.alias_create(actor=COMMAND, name="nick", model=model)
    limited = build.device(total_memory_bytes=6 * GIB, installed_memory_bytes=16 * GIB)
    beat(devices=[limited])
    services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")
    loaded = build.replica(report=build.report(), stats=build.stats(in_flight=3))
    beat(devices=[limited], replicas=[loaded])
    Neuron.objects.update(problems=["driver 1 does not match library 2"])
    assert admin_client.get(reverse("admin:index")).status_code == 200
    shown = {noun: page(admin_client, noun) for noun in NOUNS}
    for noun, table in zip(
        NOUNS, (Neuron, Device, CatalogueModel, Alias, Replica, LoadJob), strict=True
    ):
        assert "tiny" in shown[noun] or noun in {"neuron", "device"}
        page(admin_client, noun, "change", table.objects.get().pk)
    for noun in ("neuron", "device"):
        assert "a processor" in shown[noun] and "6.0 GiB (limit, of 16.0 GiB)" in shown[noun]
    assert "driver 1 does not match library 2" in shown["neuron"]


def test_a_list_costs_the_same_however_many_rows(
    admin_client, model, beat, build, django_assert_max_num_queries
) -> None:
    for name in "abcdefgh":
        beat(name, replicas=[build.replica(stats=build.stats())])
        LoadJob.objects.create(model=model, model_name="tiny", neuron=Neuron.objects.get(name=name))
    for noun in NOUNS:
        with django_assert_max_num_queries(14):
            page(admin_client, noun)
