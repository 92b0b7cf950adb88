"""The admin's lists and rows: what each shows and costs, and who may look."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission
from django.urls import reverse
from django.utils import timezone

from fleet import services
from fleet.models import Alias, CatalogueModel, Device, LoadJob, Neuron, Replica
from inference.protocol.heartbeat import ReplicaStatus
from metering.actor import COMMAND
from tests.fleet.admin.admin_pages import act, page

pytestmark = pytest.mark.django_db(transaction=True)
NOUNS = ("neuron", "device", "cataloguemodel", "alias", "replica", "loadjob")


def test_every_list_and_row_shows(admin_client, model, beat, build, sent) -> None:
    services.alias_create(actor=COMMAND, name="nick", model=model)
    services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name=beat().name)
    beat(replicas=[build.replica(report=build.report(), stats=build.stats(in_flight=3))])
    assert admin_client.get(reverse("admin:index")).status_code == 200
    for noun, table in zip(
        NOUNS,
        (Neuron, Device, CatalogueModel, Alias, Replica, LoadJob),
        strict=True,
    ):
        assert "tiny" in page(admin_client, noun) or noun in {"neuron", "device"}
        page(admin_client, noun, "change", table.objects.get().pk)


def test_models_are_filtered_by_their_state_and_neuron(admin_client, model, beat, build) -> None:
    for name in ("broken", "cold"):
        CatalogueModel.objects.create(name=name, source="pypi:tiny")
    beat(replicas=[build.replica(), build.replica(model="broken", status=ReplicaStatus.FAILED)])
    neuron, now = Neuron.objects.get(), timezone.now()
    Neuron.objects.create(
        name="attic", status="online", status_since=now, started_at=now, last_seen_at=now
    )
    for query, wanted in (
        ("state=loaded", {"tiny"}),
        ("state=failed", {"broken"}),
        ("state=unloaded", {"cold"}),
        (f"replicas__neuron__id__exact={neuron.pk}", {"tiny", "broken"}),
    ):
        shown = admin_client.get(f"/admin/fleet/cataloguemodel/?{query}")
        assert {row.name for row in shown.context["cl"].result_list} == wanted, query


def test_a_list_costs_the_same_however_many_rows(
    admin_client, model, build, django_assert_max_num_queries
) -> None:
    for name in "abcdefgh":
        services.heartbeat_record(
            heartbeat=build.heartbeat(name, replicas=[build.replica(stats=build.stats())])
        )
        neuron = Neuron.objects.get(name=name)
        LoadJob.objects.create(model=model, model_name="tiny", neuron=neuron)
    for noun in NOUNS:
        with django_assert_max_num_queries(14):
            page(admin_client, noun)


@pytest.mark.parametrize("noun", ["neuron", "device", "replica", "loadjob"])
def test_what_neurons_report_cannot_be_added(admin_client, noun: str) -> None:
    assert admin_client.get(reverse(f"admin:fleet_{noun}_add")).status_code == 403


def test_a_neuron_shows_its_devices_and_its_problems(admin_client, beat) -> None:
    beat()
    Neuron.objects.update(problems=["driver 1 does not match library 2"])
    html = page(admin_client, "neuron")
    assert "a processor" in html
    assert "8.0" in html
    assert "driver 1 does not match library 2" in html


def test_who_may_only_look_cannot_load(client, django_user_model, model, beat, sent) -> None:
    beat()
    viewer = django_user_model.objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.add(
        *Permission.objects.filter(codename__in=["view_cataloguemodel", "view_loadjob"])
    )
    client.force_login(viewer)
    assert "tiny" in page(client, "cataloguemodel")
    act(client, "cataloguemodel", "load_selected", model)
    assert not LoadJob.objects.exists()


def test_strangers_are_asked_to_log_in(client) -> None:
    for noun in NOUNS:
        response = client.get(reverse(f"admin:fleet_{noun}_changelist"))
        assert response.status_code == 302
        assert "login" in response.headers["Location"]
