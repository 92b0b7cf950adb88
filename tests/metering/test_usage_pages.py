"""The usage pages: what strangers, members and operators see, the keys that members make, and how
people are invited and choose their password."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
import redis
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from fleet import services as fleet_services
from fleet.live import reading as live
from inference.protocol.refusals import Refused, encode_field, refusals_key
from metering import services
from metering.audit import COMMAND, user_actor
from metering.models import Account, ApiKey, AuditEntry, Budget, Membership
from metering.selectors import UsageGroup, UsagePeriod, UsageRow, UsageSums
from metering.usage_rows import chart_of
from tests.metering.callers import newest, person, staff, text_of, used

pytestmark = pytest.mark.django_db


@pytest.fixture
def alice(account: Account) -> Client:
    return person("alice", account, role="member")


@pytest.fixture(autouse=True)
def _redis(redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "redis_client", lambda: redis_db)


def test_members_see_their_accounts_alone_and_operators_all(
    alice: Client, operator: Client, account: Account
) -> None:
    services.account_create(actor=COMMAND, name="elsewhere")
    used("research", "tiny", requests=1200, cost_micro_usd=1_230)
    used("elsewhere", "secret", cost_micro_usd=990_000)
    text = text_of(alice, "/usage/?by=model")
    assert "tiny" in text and "1,200" in text and "$0.00123" in text
    assert "secret" not in text and "$0.99" not in text and "Dashboard" not in text
    assert "secret" not in text_of(alice, "/usage/?by=model&account=elsewhere")
    assert "You belong to no account yet" in text_of(person("bob"), "/usage/")
    text = text_of(operator, "/usage/?by=model")
    assert "tiny" in text and "secret" in text
    text = text_of(operator, "/usage/?by=model&account=elsewhere")
    assert ">secret<" in text and ">tiny<" not in text
    assert Client().get("/usage/keys")["Location"] == "/login/?next=/usage/keys"
    response = alice.get("/usage/?by=model&format=csv")
    assert response["Content-Type"].startswith("text/csv")
    assert response.text.splitlines()[1] == "tiny,1200,0,10,10,10,10,1230"
    budget = Budget(account=account, unit="micro_usd", cap=10_000_000)
    services.budget_create(actor=COMMAND, budget=budget)
    Budget.objects.update(spent=2_500_000)
    text = text_of(alice, "/usage/")
    assert "$7.50" in text and "$10.00" in text and "does not come back by itself" in text
    for query in ("from=never", "from=2026-02-01&to=2026-01-01", "from=2001-01-01"):
        assert 'role="alert"' in text_of(alice, f"/usage/?{query}")
    first = datetime(2026, 1, 1, tzinfo=UTC).date()
    sums = UsageSums(cost_micro_usd=300_000, prompt_tokens=7)
    period = UsagePeriod(first=first, last=first + timedelta(days=2))
    drawn = chart_of(UsageGroup.DAY, [UsageRow(name="2026-01-02", sums=sums)], period)
    days = ["2026-01-01", "2026-01-02", "2026-01-03"]
    assert drawn == {"labels": days, "USD": [0.0, 0.3, 0.0], "tokens": [0, 7, 0]}


FORM = {"account": "research", "name": "laptop", "unit": "micro_usd", "window": "month"}


def test_a_member_makes_changes_and_revokes_a_key(alice: Client, account: Account) -> None:
    Account.objects.get_or_create(name="elsewhere")
    for changes, message in (
        ({"account": "elsewhere"}, "not one of the available choices"),
        ({"cap": "1.5", "unit": "tokens"}, "not a whole number of tokens"),
        ({"requests_per_minute": "0"}, "greater than or equal to 1"),
        ({"expires_at": "2020-01-01"}, "have expired already"),
        ({"model_names": ["nothing"]}, "not one of the available choices"),
    ):
        assert message in alice.post("/usage/keys", FORM | changes).text
    assert not ApiKey.objects.exists()
    fleet_services.catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny")
    form = FORM | {
        "model_names": ["tiny"],
        "requests_per_minute": "30",
        "cap": "12.50",
        "expires_at": str(timezone.now().date() + timedelta(days=3)),
    }
    response = alice.post("/usage/keys", form)
    assert response["Cache-Control"] == "no-store"
    found = re.search(r'id="api-key"[^>]*>(hx-[^<]+)<', response.content.decode())
    assert found is not None
    key = ApiKey.objects.get()
    assert found[1].startswith(key.prefix)
    assert (key.name, key.model_names, key.requests_per_minute) == ("laptop", ["tiny"], 30)
    assert (key.scopes, key.created_by) == (["inference", "usage:read"], "user:alice")
    budget = Budget.objects.get()
    assert (budget.key_id, budget.cap, budget.window) == (key.prefix, 12_500_000, "month")
    Budget.objects.update(spent=2_000_000)
    listed = text_of(alice, "/usage/keys")
    assert key.prefix in listed and found[1] not in listed
    assert "$10.50 of $12.50 per month" in listed
    path = f"/usage/keys/{key.prefix}"
    expired = alice.post(path, {"name": "new", "expires_at": "2020-01-01"})
    assert "have expired already" in expired.text
    assert str(key) in expired.text  # the page's title is still of the key as it is
    response = alice.post(path, {"name": "new", "max_concurrent": "2"})
    assert response["Location"] == "/usage/keys"
    key.refresh_from_db()
    assert (key.name, key.max_concurrent) == ("new", 2)
    assert newest()[:2] == ("user:alice", "key.update")
    past = timezone.now() - timedelta(days=3)
    ApiKey.objects.update(expires_at=past)
    alice.post(path, {"name": "new", "expires_at": str(past.date())})
    assert ApiKey.objects.get().expires_at == past  # a date that was not changed stays
    assert "Revoked" in alice.post(f"{path}/revoke", follow=True).text
    assert "was revoked already" in alice.post(f"{path}/revoke", follow=True).text
    alice.post(path, {"name": "alive"})
    key.refresh_from_db()
    assert key.revoked_at is not None and "revoked, for good" in text_of(alice, path)
    assert key.name == "new"


def test_a_member_changes_their_own_and_an_owner_all(alice: Client, account: Account) -> None:
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
    viewer.post("/usage/keys", FORM)
    assert ApiKey.objects.count() == 1


def test_operators_see_who_spends_and_who_is_refused(
    operator: Client, redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet_services.upstream_create(actor=COMMAND, name="box", url="http://box/v1")
    prices = {"input_price_micro_usd": 150_000, "output_price_micro_usd": 600_000}
    targets = {"targets": ("own", "box/m input_price 0.5 output_price 7")}
    for name, changes in (("tiny", prices), ("large", targets)):
        fleet_services.catalogue_model_create(
            actor=COMMAND, name=name, source=f"pypi:{name}", **changes
        )
        used(model=name, key="hx-aaaaaaaaaa", cost_micro_usd=300_000, failed_requests=3)
    refused = encode_field(Refused("insufficient_quota", "research"))
    redis_db.hincrby(refusals_key(timezone.now().timestamp()), refused, 17)
    text = text_of(operator, "/usage/accounts")
    for words in ("hx-aaaaaaaaaa", "$0.15 in, $0.60 out", "$15,000.00", ">17<"):
        assert words in text
    assert "up to $0.50 in, $7.00 out" in text, "at most, with the prices of its targets"
    assert "/requests/?account=research&amp;code=insufficient_quota&amp;since=24h" in text
    nowhere = redis.Redis.from_url("unix:///nonexistent/redis.sock")
    monkeypatch.setattr(live, "redis_client", lambda: nowhere)
    assert "Redis does not answer" in text_of(operator, "/usage/accounts")


def test_the_audit_is_filtered(operator: Client, account: Account) -> None:
    scopes = ["inference", "usage:read"]
    key = services.key_create(actor=user_actor("bob"), account=account, name="ci", scopes=scopes)
    key.row.name = "cd"
    services.key_update(actor=user_actor("alice"), key=key.row, changed_fields=["name"])
    text = text_of(operator, "/usage/audit")
    assert "name: ci → cd" in text and "account.create" in text
    assert "scopes: inference, usage:read" in text
    text = text_of(operator, "/usage/audit?actor=alice&action=key")
    assert "key.update" in text and "key.create" not in text
    assert "No entry is like that" in text_of(operator, "/usage/audit?last=2020-01-01")
    client = staff("stef")
    refused = client.get("/usage/audit")
    assert refused.status_code == 403 and "for people with other permissions" in refused.text
    assert "/usage/audit" not in text_of(client, "/usage/accounts")


ADD = "/admin/auth/user/add/"
COUNTS = {"memberships-TOTAL_FORMS": "1", "memberships-INITIAL_FORMS": "0"}
MEMBER = COUNTS | {"memberships-0-account": "research", "memberships-0-role": "owner"}
INVITED = {"username": "mia", "email": "mia@example.org"} | MEMBER
LINK = re.compile(r"http://testserver(/welcome/[^<\s]+)")
NEW = {"new_password1": "a long password", "new_password2": "a long password"}


def invited(operator: Client, **form: str) -> str:
    """The link's path."""
    response = operator.post(ADD, INVITED | form)
    assert response.status_code == 200 and "no-store" in response["Cache-Control"]
    found = LINK.search(response.text)
    assert found is not None, response.context["errors"]
    return found[1]


def choose(path: str, form: dict[str, str] = NEW) -> str:
    """Chooses a password as their browser does: the page, then its form. Returns the last page."""
    client = Client()
    page = client.get(path, follow=True)
    if not page.redirect_chain:
        return page.text
    return client.post(page.redirect_chain[-1][0], form, follow=True).text


def test_who_is_invited_chooses_the_password_once(operator: Client, account: Account) -> None:
    link = invited(operator)
    mia = User.objects.get(username="mia")
    assert mia.email == "mia@example.org" and not mia.has_usable_password()
    assert not mia.is_staff
    member = Membership.objects.get(user=mia)
    assert (member.account, member.role) == (account, "owner")
    assert "too common" in choose(link, dict.fromkeys(NEW, "12345678"))
    assert 'id="playground"' in choose(link), "logged in, where members start"
    assert "This link has been used" in choose(link, dict.fromkeys(NEW, "another one"))
    assert "This link has been used" in choose("/welcome/MQ/made-up/")
    mia.refresh_from_db()
    assert mia.check_password("a long password")
    entries = set(AuditEntry.objects.values_list("actor", "action", "object_id"))
    made = {("user:carol", "user.create", "mia"), ("user:carol", "membership.set", "research/mia")}
    assert made | {("user:mia", "user.update", "mia")} <= entries
    assert "a long password" not in str(list(AuditEntry.objects.values_list("detail")))
    assert "already exists" in operator.post(ADD, INVITED).text and User.objects.count() == 2
    mia.set_password("forgotten")
    mia.save()
    form = {"action": "invite_again", "_selected_action": [str(mia.pk)]}
    asked = operator.post("/admin/auth/user/", form).text
    assert "Invite again" in asked and "/welcome/" not in asked
    found = LINK.search(operator.post("/admin/auth/user/", {**form, "sure": "1"}).text)
    assert found is not None and newest() == ("user:carol", "user.invite", "mia")
    choose(found[1])
    mia.refresh_from_db()
    assert mia.check_password("a long password")
    Membership.objects.all().delete()
    alone = {"memberships-0-account": "", "memberships-0-role": "member", "username": "noa"}
    invited(operator, **alone)
    assert not Membership.objects.exists()
    client = staff("dave", "add_user", "change_user")
    assert '-0-account"' not in client.get(ADD).text
    invited(client, username="pat")
    assert not Membership.objects.exists()
    client = staff("looks", "view_user")
    assert client.post(ADD, INVITED).status_code == 403
    asked = client.post("/admin/auth/user/", {**form, "sure": "1"}, follow=True)
    assert "/welcome/" not in asked.text


def test_members_log_in_and_change_their_password(account: Account) -> None:
    mia, client = person("mia", account, password="her own"), Client()
    for path in ("/login/", "/admin/login/"):
        text = client.post(path, {"username": "mia", "password": "wrong"}).text
        assert "do not belong together" in text and "staff" not in text
    text = client.post("/admin/login/", {"username": "mia", "password": "her own"}).text
    assert "Members log in at /login/" in text and "_auth_user_id" not in client.session
    new = {"old_password": "her own", "new_password1": "x7-b", "new_password2": "x7-b"}
    assert "too short" in mia.post("/password/", new).text
    new |= {"new_password1": "another one, longer", "new_password2": "another one, longer"}
    assert "Your password is changed" in mia.post("/password/", new, follow=True).text
    assert User.objects.get(username="mia").check_password("another one, longer")
    assert newest() == ("user:mia", "user.update", "mia")
    assert client.get("/password/")["Location"].startswith("/login/")
