"""Who changed the catalogue, and who loaded and unloaded what."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from fleet import services
from fleet.models import Neuron
from metering.actor import COMMAND, GATEWAY, user_actor
from metering.models import AuditEntry
from tests.fleet.admin.admin_pages import FORM

pytestmark = pytest.mark.django_db

ALICE = user_actor("alice")


def newest() -> AuditEntry:
    entry = AuditEntry.objects.first()
    assert entry is not None
    return entry


def what(entry: AuditEntry) -> tuple[str, str, str, Any]:
    return (entry.actor, entry.action, entry.object_id, entry.detail)


@pytest.fixture
def neuron() -> Neuron:
    now = timezone.now()
    return Neuron.objects.create(name="beast", status_since=now, started_at=now, last_seen_at=now)


def test_the_catalogue() -> None:
    model = services.catalogue_model_create(actor=ALICE, name="tiny", source="pypi:tiny")
    assert newest().detail["source"] == "pypi:tiny"
    model.enabled = False
    services.catalogue_model_update(actor=ALICE, model=model, changed_fields=["enabled"])
    assert what(newest()) == ("user:alice", "model.update", "tiny", {"enabled": [True, False]})
    alias = services.alias_create(actor=ALICE, name="nick", model=model)
    assert what(newest()) == ("user:alice", "alias.create", "nick", {"model": "tiny"})
    alias.name = "other"
    services.alias_update(actor=ALICE, alias=alias, changed_fields=["name"])
    assert what(newest()) == (
        "user:alice",
        "alias.update",
        "other",
        {"name": ["nick", "other"]},
    )
    services.alias_delete(actor=ALICE, alias=alias)
    assert what(newest()) == ("user:alice", "alias.delete", "other", {})
    services.catalogue_model_delete(actor=COMMAND, model=model)
    assert what(newest()) == (str(COMMAND), "model.delete", "tiny", {})


def test_the_aliases_of_a_removed_model_have_rows() -> None:
    model = services.catalogue_model_create(actor=ALICE, name="tiny", source="pypi:tiny")
    for name in ("one", "two"):
        services.alias_create(actor=ALICE, name=name, model=model)
    services.catalogue_model_delete(actor=ALICE, model=model)
    removed = AuditEntry.objects.filter(action="alias.delete").order_by("object_id")
    assert [what(one) for one in removed] == [
        ("user:alice", "alias.delete", name, {"with": "tiny"}) for name in ("one", "two")
    ]


def test_the_default_model_is_audited_when_it_is_made() -> None:
    for _ in range(2):
        services.default_model_ensure(actor=COMMAND)
    assert AuditEntry.objects.count() == 1


def test_a_load_that_a_request_started(neuron: Neuron, sent: Any) -> None:
    services.catalogue_model_create(actor=ALICE, name="tiny", source="pypi:tiny")
    for _ in range(2):  # the second finds the job that is under way
        job = services.load_job_start(actor=GATEWAY, model_name="tiny", neuron_name="beast")
    detail = {"neuron": "beast", "load_job": str(job.pk)}
    assert what(newest()) == ("gateway", "model.load", "tiny", detail)
    assert AuditEntry.objects.filter(action="model.load").count() == 1
    job = services.unload_job_start(actor=ALICE, model_name="tiny", neuron_name="beast")
    detail = {"neuron": "beast", "load_job": str(job.pk)}
    assert what(newest()) == ("user:alice", "model.unload", "tiny", detail)


def test_an_operator_in_the_admin(client: Client) -> None:
    client.force_login(User.objects.create_superuser("carol"))
    response = client.post("/admin/fleet/cataloguemodel/add/", FORM)
    assert response.status_code == 302, response.context["errors"]
    assert (newest().actor, newest().action) == ("user:carol", "model.create")
