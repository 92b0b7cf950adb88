"""An account's page in the admin: everything of it in one place."""

from __future__ import annotations

import re
import time

import pytest
import redis
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from fleet.live import reading as live
from inference.protocol.held import BROKE_WORKER
from inference.protocol.refusals import Refused, encode_field, refusals_key
from metering import services
from metering.actor import COMMAND
from metering.models import Account, ApiKey, Budget
from tests.metering.callers import page, person, recorded, staff, used

pytestmark = pytest.mark.django_db


def shown(client: Client) -> str:
    return page(client, "account", "change", "research")


def test_an_accounts_page_is_its_home(operator: Client, account: Account) -> None:
    text = shown(operator)
    for words in ("It has no budget", "It has no key", "No requests in the last 30 days"):
        assert words in text
    assert "None in the last 24 hours" in text and "Redis does not answer" in text
    assert "Newest requests" not in page(operator, "account", "add")
    account.requests_per_minute = 60
    services.account_update(actor=COMMAND, account=account, changed_fields=["requests_per_minute"])
    key = services.key_create(actor=COMMAND, account=account, name="ci").row
    Budget.objects.create(account=account, unit="tokens", cap=1000, spent=400, reserved=50)
    Budget.objects.create(key=key, unit="micro_usd", cap=2_000_000, spent=500_000)
    used(key=key.prefix, requests=1_234, cost_micro_usd=2_500_000)
    used("other", "secret", key="hx-other")
    answered = recorded(key=key.prefix, neuron="beast")
    failed = recorded(status=503, outcome="failed", code="neuron_lost", message="It went away.")
    others = recorded(account="other", model="secret", status=503, outcome="failed", code="x")
    text = shown(operator)
    assert "550 tokens" in text and "$1.50 of $2.00" in text
    assert "Requests per minute</dt><dd>60" in text and "no limit" in text
    keys = text[text.index('id="account-keys-title"') :]
    assert f'href="/admin/metering/apikey/{key.prefix}/change/">ci</a>' in keys
    assert "1,234" in keys and "$2.50" in keys
    assert 'href="/admin/dashboard/model?name=tiny">tiny</a>' in text and "secret" not in text
    assert f'id="newest-{answered}"' in text and f'id="newest-{failed}"' in text
    failures = text[text.index('id="account-failures-title"') :]
    assert failed in failures and "It went away." in failures and answered not in failures
    assert others not in text
    for address in (
        "/requests/?account=research",
        "/usage/?account=research",
        "/admin/metering/ledgerentry/?account=research",
        "/usage/audit?object_id=research",
        "/admin/metering/apikey/add/?account=research",
    ):
        assert f'href="{address}"' in text
    assert "kind=account&amp;name=research" in text
    assert "nobody belongs to it." in text
    person("mia", account, role="member")
    user = User.objects.get(username="mia")
    text = shown(operator)
    assert f'<a href="/admin/auth/user/{user.pk}/change/">mia</a> (member)' in text
    assert re.search(r"<h1>.*>\s*research\s*</a>\s*</h1>", text, re.DOTALL), "as it is written"
    text = shown(staff("dave", "view_account"))
    assert 'id="account-title"' in text
    assert ">ci</a>" not in text and "$2.50" not in text and "Ledger</a>" not in text


def test_refusals_are_counted_by_code(
    operator: Client, account: Account, redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "redis_client", lambda: redis_db)
    key = refusals_key(time.time())
    for code, owner in (("insufficient_quota", "research"), ("rate_limit_exceeded", "other")):
        redis_db.hincrby(key, encode_field(Refused(code, owner)), 17)
    redis_db.hincrby(key, encode_field(Refused(BROKE_WORKER, "research", "hx-1")), 5)
    text = shown(operator)
    assert BROKE_WORKER not in text, "those have failed"
    assert 'code=insufficient_quota&amp;since=24h">17</a>' in text
    assert "rate_limit_exceeded" not in text


def test_many_rows_make_no_more_queries(operator: Client, account: Account) -> None:
    def grow(indices: range) -> int:
        for index in indices:
            prefix = f"hx-{index:010}"
            ApiKey.objects.create(prefix=prefix, account=account, name=f"k{index}", digest="x")
            Budget.objects.create(key_id=prefix, unit="tokens", cap=1000)
            used(key=prefix, model=f"m{index}")
            recorded(key=prefix)
            recorded(key=prefix, status=503, outcome="failed", code="neuron_lost")
        with CaptureQueriesContext(connection) as queries:
            text = shown(operator)
        assert text.count('class="hx-amount" data-label="requests"') <= 12
        return len(queries)

    assert grow(range(1)) == grow(range(1, 31))
    assert "19 more" in shown(operator)
