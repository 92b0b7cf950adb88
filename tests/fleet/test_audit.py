"""Who changed the catalogue, and who loaded and unloaded what."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from fleet import services
from fleet.models import Neuron
from metering.actor import COMMAND, GATEWAY, user_actor
from metering.models import AuditEntry

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
    for name in ("one", "two"):
        services.alias_create(actor=ALICE, name=name, model=model)
    services.catalogue_model_delete(actor=COMMAND, model=model)
    deleted = AuditEntry.objects.get(action="model.delete")
    assert what(deleted) == (str(COMMAND), "model.delete", "tiny", {})
    removed = AuditEntry.objects.filter(action="alias.delete", actor=str(COMMAND))
    assert [what(one)[2:] for one in removed.order_by("object_id")] == [
        (name, {"with": "tiny"}) for name in ("one", "two")
    ]


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
