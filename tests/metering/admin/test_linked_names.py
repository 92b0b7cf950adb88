"""Lists and records that name a model, a neuron, an account, a key or a request link it."""

from __future__ import annotations

import uuid

import pytest
from django.test import Client
from django.utils import timezone
from django.utils.html import escape

from fleet import services as services_of_fleet
from fleet.models import CatalogueModel, Download, LoadJob, Neuron, Replica
from metering import services
from metering.actor import COMMAND
from metering.links import audited_url
from metering.models import Account, ApiKey, LedgerEntry
from metering.services import Cap
from tests.cases import each_case
from tests.metering.callers import TOKENS, person, recorded, text_of, used

pytestmark = pytest.mark.django_db

MODEL = 'href="/admin/dashboard/model?name=tiny"'
NEURON = 'href="/admin/dashboard/neuron?name=beast"'
ACCOUNT = 'href="/admin/metering/account/research/change/"'
REQUEST = uuid.UUID("5eed" * 8)


@pytest.fixture
def key(account: Account) -> ApiKey:
    CatalogueModel.objects.create(name="tiny", source="pypi:tiny")
    made = services.key_create(actor=COMMAND, account=account, name="ci", model_names=["tiny"])
    return made.row


@pytest.fixture
def rows(key: ApiKey) -> None:
    """One of each list."""
    now = timezone.now()
    model = CatalogueModel.objects.get()
    neuron = Neuron.objects.create(
        name="beast", status="online", status_since=now, started_at=now, last_seen_at=now
    )
    Replica.objects.create(
        neuron=neuron, model=model, model_name="tiny", status="ready", status_since=now
    )
    ended = {"status": "succeeded", "finished_at": now}
    LoadJob.objects.create(model_name="tiny", model=model, neuron=neuron, **ended)
    Download.objects.create(neuron=neuron, source="pypi:tiny", **ended)
    services.budget_create(actor=COMMAND, key=key, cap=Cap(unit="tokens", cap=1000))
    LedgerEntry.objects.create(
        **dict.fromkeys((*TOKENS, "cost_micro_usd", "duration_ms"), 1),
        account="research",
        key=key.prefix,
        model="tiny",
        request_id=REQUEST.hex,
        at=now,
        neuron="beast",
    )
    used(key=key.prefix)
    recorded(key=key.prefix, request_id=REQUEST, neuron="beast")


@pytest.mark.usefixtures("rows")
@each_case(
    ("path", "links"),
    [
        ("/admin/fleet/loadjob/", (MODEL, NEURON)),
        ("/admin/fleet/replica/", (MODEL, NEURON)),
        ("/admin/fleet/download/", (NEURON,)),
        ("/admin/fleet/neuron/", (MODEL,)),
        ("/admin/fleet/cataloguemodel/", (NEURON,)),
        ("/admin/metering/apikey/", (ACCOUNT, MODEL)),
        ("/admin/metering/budget/", ("KEY",)),
        ("/admin/metering/ledgerentry/", (ACCOUNT, "KEY", "NAME", MODEL, "REQUEST")),
        ("/admin/metering/usagehour/", (ACCOUNT, "KEY", "NAME", MODEL)),
        ("/requests/", (ACCOUNT, "KEY", "NAME", MODEL, NEURON, "REQUEST")),
        (f"/requests/{REQUEST.hex}", (ACCOUNT, "KEY", MODEL, NEURON)),
        ("/usage/?by=model", (MODEL,)),
        ("/usage/?by=account", (ACCOUNT,)),
        ("/usage/?by=key", ("NAME",)),
        ("/usage/accounts", (ACCOUNT, "KEY", "NAME", MODEL)),
        ("/usage/audit?action=account.create", (ACCOUNT,)),
    ],
)
def test_names_lead_to_pages(
    operator: Client, key: ApiKey, path: str, links: tuple[str, ...]
) -> None:
    own = {
        "KEY": f'href="/admin/metering/apikey/{key.prefix}/change/"',
        "NAME": f"{key.prefix} (ci)",
        "REQUEST": f'href="/requests/{REQUEST.hex}"',
    }
    text = text_of(operator, path)
    assert [link for link in links if own.get(link, link) not in text] == []


@pytest.mark.usefixtures("rows")
def test_members_are_led_to_no_page_of_the_admin(account: Account) -> None:
    mia = person("mia", account, role="member")
    for path in ("/requests/", f"/requests/{REQUEST.hex}", "/usage/?by=model"):
        text = text_of(mia, path)
        assert "tiny" in text and 'href="/admin/' not in text
    assert 'href="/requests/?account=research' in text_of(mia, f"/requests/{REQUEST.hex}")


@each_case(
    ("action", "object_id", "url"),
    [
        ("model.update", "tiny", "/admin/dashboard/model?name=tiny"),
        ("key.revoke", "hx-1", "/admin/metering/apikey/hx-1/change/"),
        ("load_job.cancel", "tiny", "/admin/dashboard/model?name=tiny"),
        ("membership.remove", "research/mia", "/admin/metering/account/research/change/"),
        ("upstream.update", "box", "/admin/dashboard/neuron?name=upstream%3Abox"),
        ("upstream.delete", "box", ""),
        ("user.update", "mia", "/admin/auth/user/?q=mia"),
        ("neuron.remove", "beast", ""),
        ("account.delete", "research", ""),
        ("fleet.share", "10.0.0.5:6379", ""),
    ],
)
def test_objects_of_the_audit(action: str, object_id: str, url: str) -> None:
    assert audited_url(action, object_id) == url


@pytest.mark.usefixtures("rows")
def test_a_request_leads_to_where_it_ran_and_back(operator: Client) -> None:
    """The pages of its model, neuron, replica and upstream lead to the requests of theirs alone."""
    made = services_of_fleet.upstream_create(actor=COMMAND, name="cloud", url="http://box/v1")
    passed = recorded(neuron="upstream:cloud", model="large")
    at_replica = f"/admin/fleet/replica/{Replica.objects.get().pk}/change/"
    upstream = "/admin/dashboard/neuron?name=upstream%3Acloud"
    assert f'href="{upstream}"' in text_of(operator, f"/requests/{passed}")
    for address, back, ids in (
        ("/admin/dashboard/model?name=tiny", "model=tiny", {REQUEST.hex}),
        ("/admin/dashboard/neuron?name=beast", "neuron=beast", {REQUEST.hex}),
        (at_replica, "model=tiny&neuron=beast", {REQUEST.hex}),
        (upstream, "neuron=upstream%3Acloud", {passed}),
    ):
        home = operator.get(address, follow=True).text
        assert f'href="/requests/?{escape(back)}"' in home
        assert ("beast" in address) <= (f'href="{at_replica}"' in home)
        found = text_of(operator, f"/requests/?{back}")
        assert {one for one in (REQUEST.hex, passed) if f'href="/requests/{one}"' in found} == ids
    services_of_fleet.upstream_delete(actor=COMMAND, upstream=made)
    for address, listed in (
        (upstream, "/admin/fleet/upstream/?q=cloud"),
        ("/admin/dashboard/neuron?name=gone", "/admin/fleet/neuron/?q=gone"),
    ):
        assert operator.get(address)["Location"] == listed, "what has left is looked for"
