"""The usage pages: what strangers, members and operators see, and the keys that members make."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import redis
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from fleet import services as fleet_services
from fleet.live import reading as live
from inference.protocol.refusals import Refused, encode_field, refusals_key
from metering import services
from metering.actor import COMMAND, user_actor
from metering.models import Account, ApiKey, AuditEntry, Budget, UsageHour
from metering.selectors import UsageGroup, UsagePeriod, UsageRow, UsageSums
from metering.services import Cap
from metering.usage.rows import chart_of
from tests.metering.api.api_support import person

pytestmark = pytest.mark.django_db

PAGES = ("/usage/", "/usage/keys", "/usage/accounts", "/usage/audit")


def used(account: str, model: str = "tiny", *, key: str = "", days_ago: int = 0, **sums) -> None:
    hour = timezone.now().replace(minute=0, second=0, microsecond=0) - timedelta(days=days_ago)
    values = {"requests": 1, "prompt_tokens": 100, "completion_tokens": 50, "cost_micro_usd": 0}
    UsageHour.objects.create(hour=hour, account=account, model=model, key=key, **(values | sums))


OF_THE_SHELL = (
    *("/admin/", "/admin/metering/account/", "/admin/settings/", "/playground/", "/usage/"),
    *("/requests/", "/bench/", "/docs", "/api/docs", "/password/"),
)


def text_of(client: Client, path: str) -> str:
    response = client.get(path)
    assert response.status_code == 200
    return response.content.decode()


@pytest.fixture
def alice(account: Account) -> Client:
    return person("alice", account, role="member")


@pytest.fixture
def root(account: Account) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


@pytest.fixture(autouse=True)
def _redis(redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "redis_client", lambda: redis_db)


class TestWhoSeesWhat:
    @pytest.mark.parametrize("path", PAGES)
    def test_strangers_are_led_to_the_log_in(self, path: str) -> None:
        assert Client().get(path)["Location"] == f"/login/?next={path}"

    def test_members_see_their_accounts_alone(self, alice: Client, account: Account) -> None:
        services.account_create(actor=COMMAND, name="elsewhere")
        used("research", "tiny", cost_micro_usd=1_230)
        used("elsewhere", "secret", cost_micro_usd=990_000)
        text = text_of(alice, "/usage/?by=model")
        assert "tiny" in text and "$0.00123" in text
        assert "secret" not in text and "$0.99" not in text
        assert "secret" not in text_of(alice, "/usage/?by=model&account=elsewhere")
        for path in ("/usage/accounts", "/usage/audit"):
            assert alice.get(path).status_code == 403
        assert "Dashboard" not in text

    def test_operators_see_all_accounts_or_one(self, root: Client) -> None:
        services.account_create(actor=COMMAND, name="elsewhere")
        used("research", "tiny")
        used("elsewhere", "other")
        text = text_of(root, "/usage/?by=model")
        assert "tiny" in text and "other" in text
        text = text_of(root, "/usage/?by=model&account=elsewhere")
        assert ">other<" in text and ">tiny<" not in text

    def test_somebody_without_an_account(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert "You belong to no account yet" in text_of(person("bob"), "/usage/")
        open_to_all = replace(settings.CONFIG, allow_anonymous=True)
        monkeypatch.setattr(settings, "CONFIG", replace(open_to_all, allow_anonymous=False))
        assert "An operator adds you to one." in text_of(person("eve"), "/usage/keys")
        boss = person("boss", is_staff=True, is_superuser=True)
        text = text_of(boss, "/usage/keys")
        assert "/admin/metering/apikey/add/" in text and "/admin/metering/account/" in text
        assert "callers without a key" not in text
        monkeypatch.setattr(settings, "CONFIG", open_to_all)
        assert "answers callers without a key too" in text_of(boss, "/usage/keys")

    def test_open_access_stands_on_every_page(
        self, root: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for is_open in (True, False):
            config = replace(settings.CONFIG, allow_anonymous=is_open)
            monkeypatch.setattr(settings, "CONFIG", config)
            for path in OF_THE_SHELL:
                assert ("No API key needed" in text_of(root, path)) is is_open, path


class TestUsage:
    def test_by_day_with_its_total(self, alice: Client) -> None:
        used("research", days_ago=1, requests=1200, cost_micro_usd=100_000)
        used("research", "small", cost_micro_usd=200_000)
        text = text_of(alice, "/usage/")
        assert "1,200" in text and "$0.10" in text and "$0.30" in text

    def test_what_is_left(self, alice: Client, account: Account) -> None:
        budget = services.budget_create(
            actor=COMMAND,
            account=account,
            cap=Cap(unit="micro_usd", cap=10_000_000, window="balance"),
        )
        Budget.objects.filter(pk=budget.pk).update(spent=2_500_000)
        text = text_of(alice, "/usage/")
        assert "$7.50" in text and "$10.00" in text and "does not come back by itself" in text

    def test_csv(self, alice: Client) -> None:
        used("research", cost_micro_usd=5)
        response = alice.get("/usage/?by=model&format=csv")
        assert response["Content-Type"].startswith("text/csv")
        assert response.content.decode().splitlines()[1] == "tiny,1,0,100,0,50,0,5"

    @pytest.mark.parametrize(
        "query", ["from=never", "from=2026-02-01&to=2026-01-01", "from=2001-01-01"]
    )
    def test_a_period_that_is_none_is_reported(self, alice: Client, query: str) -> None:
        assert 'role="alert"' in text_of(alice, f"/usage/?{query}")

    def test_a_chart_has_the_days_without_usage(self) -> None:
        first = datetime(2026, 1, 1, tzinfo=UTC).date()
        period = UsagePeriod(first=first, last=first + timedelta(days=2))
        sums = UsageSums(cost_micro_usd=300_000, prompt_tokens=7)
        rows = [UsageRow(name="2026-01-02", sums=sums)]
        assert chart_of(UsageGroup.DAY, rows, period) == {
            "labels": ["2026-01-01", "2026-01-02", "2026-01-03"],
            "USD": [0.0, 0.3, 0.0],
            "tokens": [0, 7, 0],
        }


class TestKeys:
    FORM = {"account": "research", "name": "laptop", "unit": "micro_usd", "window": "month"}

    def test_one_is_made_and_shown_once(self, alice: Client) -> None:
        fleet_services.catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny")
        form = self.FORM | {
            "model_names": ["tiny"],
            "requests_per_minute": "30",
            "cap": "12.50",
            "expires": str(timezone.now().date() + timedelta(days=3)),
        }
        response = alice.post("/usage/keys", form)
        assert response["Cache-Control"] == "no-store"
        found = re.search(r'id="api-key"[^>]*>(hx-[^<]+)<', response.content.decode())
        assert found is not None
        key = ApiKey.objects.get()
        assert found[1].startswith(key.prefix)
        assert (key.name, key.model_names, key.requests_per_minute) == ("laptop", ["tiny"], 30)
        assert key.scopes == ["inference", "usage:read"]
        assert key.created_by == "user:alice"
        budget = Budget.objects.get()
        assert (budget.key_id, budget.cap, budget.window) == (key.prefix, 12_500_000, "month")
        assert found[1] not in text_of(alice, "/usage/keys")
        Budget.objects.update(spent=2_000_000)
        listed = text_of(alice, "/usage/keys")
        assert key.prefix in listed
        assert "$10.50 of $12.50 per month" in listed

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"account": "elsewhere"}, "not one of the available choices"),
            ({"cap": "1.5", "unit": "tokens"}, "not a whole number of tokens"),
            ({"requests_per_minute": "0"}, "greater than or equal to 1"),
            ({"expires": "2020-01-01"}, "have expired already"),
            ({"model_names": ["nothing"]}, "not one of the available choices"),
        ],
    )
    def test_what_cannot_be(self, alice: Client, changes: dict[str, str], message: str) -> None:
        services.account_create(actor=COMMAND, name="elsewhere")
        response = alice.post("/usage/keys", self.FORM | changes)
        assert message in response.content.decode()
        assert not ApiKey.objects.exists()

    def test_its_limits_are_changed(self, alice: Client, account: Account) -> None:
        key = services.key_create(actor=user_actor("alice"), account=account, name="old").row
        response = alice.post(f"/usage/keys/{key.prefix}", {"name": "new", "max_concurrent": "2"})
        assert response["Location"] == "/usage/keys"
        key.refresh_from_db()
        assert (key.name, key.max_concurrent) == ("new", 2)
        entry = AuditEntry.objects.first()
        assert entry is not None
        assert (entry.actor, entry.action) == ("user:alice", "key.update")

    def test_it_is_revoked(self, alice: Client, account: Account) -> None:
        key = services.key_create(actor=user_actor("alice"), account=account).row
        assert (
            "Revoked"
            in alice.post(f"/usage/keys/{key.prefix}/revoke", follow=True).content.decode()
        )
        key.refresh_from_db()
        assert key.revoked_at is not None
        assert "revoked, for good" in text_of(alice, f"/usage/keys/{key.prefix}")
        alice.post(f"/usage/keys/{key.prefix}", {"name": "alive"})
        key.refresh_from_db()
        assert key.name == ""

    def test_a_member_changes_their_own_and_an_owner_all(
        self, alice: Client, account: Account
    ) -> None:
        key = services.key_create(actor=user_actor("bob"), account=account).row
        owner = person("olga", account, role="owner")
        viewer = person("vera", account, role="viewer")
        stranger = person("sam", services.account_create(actor=COMMAND, name="elsewhere"))
        for client in (alice, viewer, stranger):
            assert client.get(f"/usage/keys/{key.prefix}").status_code == 404
            assert client.post(f"/usage/keys/{key.prefix}/revoke").status_code == 404
            assert key.prefix not in text_of(client, "/usage/keys")
        assert owner.get(f"/usage/keys/{key.prefix}").status_code == 200
        assert key.prefix in text_of(owner, "/usage/keys")
        viewer.post("/usage/keys", self.FORM)
        assert ApiKey.objects.count() == 1


class TestOperators:
    def test_who_spends_and_who_is_refused(self, root: Client, redis_db: redis.Redis) -> None:
        fleet_services.catalogue_model_create(
            actor=COMMAND,
            name="tiny",
            source="pypi:tiny",
            input_price_micro_usd=150_000,
            output_price_micro_usd=600_000,
        )
        used("research", key="hx-aaaaaaaaaa", cost_micro_usd=300_000)
        refused = encode_field(Refused("insufficient_quota", "research"))
        redis_db.hincrby(refusals_key(timezone.now().timestamp()), refused, 17)
        text = text_of(root, "/usage/accounts")
        assert "hx-aaaaaaaaaa" in text
        assert "$0.15 in, $0.60 out" in text and "$2,000.00" in text
        assert "insufficient_quota" in text and ">17<" in text
        assert "/requests/?account=research&amp;code=insufficient_quota&amp;since=24h" in text

    def test_targets_with_prices_are_in_what_a_model_costs_at_most(self, root: Client) -> None:
        fleet_services.upstream_create(actor=COMMAND, name="box", url="http://box/v1")
        fleet_services.catalogue_model_create(
            actor=COMMAND,
            name="tiny",
            source="pypi:tiny",
            targets=("own", "box/m input_price 0.5 output_price 7"),
        )
        used("research", cost_micro_usd=300_000)
        assert "up to $0.50 in, $7.00 out" in text_of(root, "/usage/accounts")

    def test_failed_ones_lead_to_their_requests(self, root: Client, account: Account) -> None:
        used("research", failed_requests=3)
        day = UsageHour.objects.get().hour.date()
        where = f"since={day}&amp;until={day + timedelta(days=1)}&amp;outcome=failed"
        assert f'href="/requests/?{where}"' in text_of(root, "/usage/")
        assert "account=research&amp;outcome=failed" in text_of(root, "/usage/accounts")

    def test_a_budget_leads_to_its_requests(self, alice: Client, account: Account) -> None:
        cap = Cap(unit="tokens", cap=100, window="day")
        services.budget_create(actor=COMMAND, account=account, cap=cap)
        assert 'href="/requests/?account=research"' in text_of(alice, "/usage/")

    def test_redis_is_away(self, root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        nowhere = redis.Redis.from_url("unix:///nonexistent/redis.sock")
        monkeypatch.setattr(live, "redis_client", lambda: nowhere)
        assert "Redis does not answer" in text_of(root, "/usage/accounts")

    def test_the_audit_is_filtered(self, root: Client, account: Account) -> None:
        scopes = ["inference", "usage:read"]
        key = services.key_create(
            actor=user_actor("bob"), account=account, name="ci", scopes=scopes
        ).row
        key.name = "cd"
        services.key_update(actor=user_actor("alice"), key=key, changed_fields=["name"])
        text = text_of(root, "/usage/audit")
        assert "name: ci → cd" in text and "account.create" in text
        assert "scopes: inference, usage:read" in text
        text = text_of(root, "/usage/audit?actor=alice&action=key")
        assert "key.update" in text and "key.create" not in text
        assert "No entry is like that" in text_of(root, "/usage/audit?last=2020-01-01")

    def test_staff_without_the_permission_reads_no_audit(self) -> None:
        client = Client()
        client.force_login(User.objects.create_user("stef", is_staff=True))
        refused = client.get("/usage/audit")
        assert refused.status_code == 403
        assert "for people with other permissions" in refused.content.decode()
        assert "/usage/audit" not in text_of(client, "/usage/accounts")
