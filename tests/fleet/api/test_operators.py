"""Aliases, invitations, the policy and the settings over REST, and dry runs of removals."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from fleet import services
from fleet.models import Alias, CatalogueModel, FleetPolicy, Invitation, LoadJob
from metering.actor import COMMAND
from metering.models import AuditEntry
from tests.fleet.api.api_support import Api, key_api, need_keys

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _needs_keys(settings: Any) -> None:
    need_keys(settings)


@pytest.fixture
def api() -> Api:
    return key_api("fleet:read", "fleet:write")


@pytest.fixture
def _can_invite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.services.hosts.invitations._ensure_redis_can", lambda: None)
    monkeypatch.setattr("fleet.services.hosts.invitations.redis_users_apply", lambda: None)


def test_an_alias_is_repointed(api: Api, model) -> None:
    services.catalogue_model_create(actor=COMMAND, name="large", source="pypi:large")
    api.post("aliases", {"name": "openai/gpt", "model": "tiny"}, 201)
    assert api.patch("aliases/openai/gpt", {"model": "large"})["model"] == "large"
    assert Alias.objects.get().model.name == "large"
    assert api.get("aliases?model=large")["num_rows"] == 1
    assert api.patch("aliases/openai/gpt", {"model": "none"}, 404)["code"] == "model_not_found"
    assert api.patch("aliases/openai/gpt", {"name": "x"}, 400)["code"] == "unknown_parameter"
    entry = AuditEntry.objects.get(action="alias.update")
    assert entry.detail == {"model": ["tiny", "large"]}
    assert (
        api.delete("aliases/openai/gpt?dry_run=true", 200)["would"][0]["action"] == "alias.delete"
    )
    assert Alias.objects.exists()


def test_a_dry_run_removes_and_sends_nothing(api: Api, model, beat, build, sent) -> None:
    beat(replicas=[build.replica()])
    would = api.delete("catalogue/tiny?dry_run=true", 200)["would"]
    assert [one["action"] for one in would] == ["model.delete", "model.unload"]
    assert CatalogueModel.objects.filter(name="tiny").exists()
    assert not LoadJob.objects.exists()
    assert sent.tasks == []
    assert not AuditEntry.objects.filter(action="model.delete").exists()
    refused = api.delete("neurons/beast?dry_run=true", 409)
    assert refused["code"] == "neuron_alive"


def test_models_are_filtered(api: Api, model) -> None:
    services.catalogue_model_create(actor=COMMAND, name="off", source="pypi:off", enabled=False)
    names = [row["name"] for row in api.get("catalogue?enabled=false")["data"]]
    assert names == ["off"]
    assert api.get("catalogue?pinned=maybe", 400)["param"] == "pinned"


@pytest.mark.usefixtures("_can_invite")
def test_a_host_is_invited_and_shut_out(api: Api) -> None:
    services.share_record(actor=COMMAND, address="10.0.0.5:31315", is_tls=False, certificate="")
    made = api.post("invitations", {"neuron": "beast"}, 201)
    assert made["join"].startswith("hx1.")
    assert made["voids_earlier"] is False
    assert api.post("invitations", {"neuron": "beast"}, 201)["voids_earlier"] is True
    assert made["invited_by"].startswith("key:hx-")
    assert "join" not in api.get("invitations/beast")
    assert api.get("invitations")["num_rows"] == 1
    for query, num_rows in (("neuron=beast", 1), ("neuron=beauty", 0), ("invited_by=user:ada", 0)):
        assert api.get(f"invitations?{query}")["num_rows"] == num_rows
    assert (
        api.delete("invitations/beast?dry_run=true", 200)["would"][0]["action"] == "neuron.revoke"
    )
    api.delete("invitations/beast")
    assert not Invitation.objects.exists()
    assert api.delete("invitations/beast", 404)["code"] == "invitation_not_found"
    assert api.post("invitations", {"neuron": "no name"}, 400)["code"] == "invitation_refused"


def test_the_policy_is_read_and_changed(api: Api) -> None:
    assert api.get("policy")["admission"] == "automatic"
    assert api.patch("policy", {"admission": "click"})["admission"] == "click"
    assert FleetPolicy.objects.get().admission == "click"
    assert api.patch("policy", {"admission": "never"}, 400)["param"] == "admission"


def test_settings_are_for_superusers_and_writers(api: Api) -> None:
    rows = {row["name"]: row for row in api.get("settings")["data"]}
    assert "HELEXA_DATA_DIR" in rows
    assert api.get("settings/HELEXA_DATA_DIR") == rows["HELEXA_DATA_DIR"]
    assert api.get("settings/HELEXA_TEST_NOTHING", 404)["code"] == "setting_not_found"
    key_api("fleet:read").get("settings", 403)
    client = Client()
    client.force_login(User.objects.create_user("clerk", is_staff=True))
    assert client.get("/api/settings").status_code == 403


def test_people_need_the_permission_of_the_verb(model) -> None:
    """The rule is the admin's: who may change models may not remove neurons."""
    client = Client()
    user = User.objects.create_user("clerk", is_staff=True)
    client.force_login(user)
    for method, path in (
        ("delete", "/api/neurons/beast"),
        ("post", "/api/neurons/beast/drain"),
        ("post", "/api/aliases"),
        ("post", "/api/invitations"),
        ("patch", "/api/policy"),
        ("delete", "/api/catalogue/tiny"),
    ):
        response = getattr(client, method)(path, {}, content_type="application/json")
        assert response.status_code == 403, (method, path)
