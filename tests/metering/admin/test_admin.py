"""The operator's pages of accounts and keys."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from fleet import services as fleet_services
from metering import services
from metering.actor import COMMAND
from metering.keys import api_key as keys
from metering.models import (
    Account,
    ApiKey,
    AuditEntry,
    Budget,
    Membership,
)
from metering.services import Cap
from tests.metering.admin.admin_support import errors, newest, page, post, url

pytestmark = pytest.mark.django_db

NOUNS = ("account", "apikey", "budget", "ledgerentry", "usagehour")
RECORDS = ("ledgerentry", "usagehour")
NO_ROWS = {
    f"{name}-{what}": "0"
    for name in ("memberships", "budgets")
    for what in ("TOTAL_FORMS", "INITIAL_FORMS")
}
ACCOUNT_FORM = {"description": "", "weight": "1", "enabled": "on", **NO_ROWS}


@pytest.mark.parametrize("noun", NOUNS)
def test_every_list_is_there_and_in_the_navigation(operator: Client, noun: str) -> None:
    page(operator, noun)
    assert f'href="{url(noun, "changelist")}"' in operator.get("/admin/").content.decode()


def test_pages_show_what_is_left_of_caps(operator: Client, account: Account) -> None:
    key = services.key_create(actor=COMMAND, account=account).row
    Budget.objects.create(account=account, unit="tokens", cap=1000, spent=400, reserved=50)
    Budget.objects.create(key=key, unit="micro_usd", cap=2_000_000, spent=500_000)
    assert "550 of 1,000 tokens" in page(operator, "account")
    assert "$1.50 of $2.00" in page(operator, "apikey")
    assert "$1.50 of $2.00" in page(operator, "account", "change", "research")


@pytest.mark.parametrize("noun", RECORDS)
def test_records_are_only_looked_at(operator: Client, noun: str) -> None:
    assert operator.get(url(noun, "add")).status_code == 403


@pytest.mark.parametrize("noun", NOUNS)
def test_staff_without_permission_see_nothing(account: Account, noun: str) -> None:
    client = Client()
    client.force_login(User.objects.create_user("dave", is_staff=True))
    assert client.get(url(noun, "changelist")).status_code == 403


class TestAccounts:
    def test_create(self, operator: Client) -> None:
        post(operator, "account", "add", name="ops", **ACCOUNT_FORM | {"weight": "3"})
        assert Account.objects.get(name="ops").weight == 3
        assert newest() == ("user:carol", "account.create", "ops")

    def test_a_name_that_is_none(self, operator: Client) -> None:
        assert "lower-case slug" in errors(
            operator, "account", "add", name="No Slug", **ACCOUNT_FORM
        )

    def test_everything_of_it_on_one_page(self, operator: Client, account: Account) -> None:
        bob = User.objects.create_user("bob")
        post(
            operator,
            "account",
            "change",
            "research",
            **ACCOUNT_FORM
            | {
                "enabled": "",
                "requests_per_minute": "60",
                "memberships-TOTAL_FORMS": "1",
                "memberships-0-user": str(bob.pk),
                "memberships-0-role": "owner",
                "budgets-TOTAL_FORMS": "1",
                "budgets-0-unit": "micro_usd",
                "budgets-0-amount": "$0.0123",
                "budgets-0-window": "day",
            },
        )
        account.refresh_from_db()
        assert (account.enabled, account.requests_per_minute) == (False, 60)
        assert Membership.objects.get().role == "owner"
        budget = Budget.objects.get()
        assert (budget.unit, budget.cap, budget.window) == ("micro_usd", 12_300, "day")
        actions = set(AuditEntry.objects.values_list("actor", "action"))
        assert {
            ("user:carol", action)
            for action in ("account.update", "membership.set", "budget.create")
        } <= actions
        Budget.objects.update(spent=300, reserved=2000)
        shown = page(operator, "account", "change", "research")
        for text in ("$0.0123", "$0.0003", "$0.002", "$0.01"):
            assert text in shown

    def test_a_budget_that_cannot_be(self, operator: Client) -> None:
        form = ACCOUNT_FORM | {
            "budgets-TOTAL_FORMS": "1",
            "budgets-0-unit": "tokens",
            "budgets-0-amount": "12.5",
            "budgets-0-window": "balance",
        }
        response = operator.post(url("account", "change", "research"), form)
        assert "not a whole number of tokens" in response.content.decode()
        assert not Budget.objects.exists()

    def test_a_budget_that_changes_and_goes(self, operator: Client, account: Account) -> None:
        budget = services.budget_create(
            actor=COMMAND, cap=Cap(unit="tokens", cap=50), account=account
        )
        Budget.objects.update(spent=20)
        row = {
            "budgets-TOTAL_FORMS": "1",
            "budgets-INITIAL_FORMS": "1",
            "budgets-0-id": str(budget.pk),
            "budgets-0-account": "research",
            "budgets-0-unit": "tokens",
            "budgets-0-amount": "1,000",
            "budgets-0-window": "balance",
        }
        post(operator, "account", "change", "research", **ACCOUNT_FORM | row)
        budget.refresh_from_db()
        assert (budget.cap, budget.spent) == (1000, 20)
        assert newest()[1] == "budget.update"
        row["budgets-0-DELETE"] = "on"
        post(operator, "account", "change", "research", **ACCOUNT_FORM | row)
        assert not Budget.objects.exists()
        assert newest()[1] == "budget.remove"

    def test_a_person_who_leaves(self, operator: Client, account: Account) -> None:
        bob = User.objects.create_user("bob")
        member = services.membership_set(actor=COMMAND, account=account, user=bob, role="owner")
        row = {
            "memberships-TOTAL_FORMS": "1",
            "memberships-INITIAL_FORMS": "1",
            "memberships-0-id": str(member.pk),
            "memberships-0-account": "research",
            "memberships-0-user": str(bob.pk),
            "memberships-0-role": "owner",
            "memberships-0-DELETE": "on",
        }
        post(operator, "account", "change", "research", **ACCOUNT_FORM | row)
        assert newest() == ("user:carol", "membership.remove", "research/bob")

    def test_delete(self, operator: Client) -> None:
        post(operator, "account", "delete", "research", post="yes")
        assert newest() == ("user:carol", "account.delete", "research")
        assert operator.get(url("account", "delete", "shared")).status_code == 403


class TestKeys:
    FORM = {"account": "research", "name": "ci", "scopes": ["inference"]}

    def test_create_shows_the_key_once(self, operator: Client) -> None:
        fleet_services.catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny")
        response = operator.post(url("apikey", "add"), self.FORM | {"model_names": ["tiny"]})
        assert response.status_code == 200
        assert "no-store" in response["Cache-Control"]
        key = re.search(r"hx-\w{10}-\w{32}", response.content.decode())
        assert key is not None
        row = ApiKey.objects.get()
        assert keys.prefix_of(key[0]) == row.prefix
        assert (row.scopes, row.model_names) == (["inference"], ["tiny"])
        assert row.created_by == "user:carol"
        for text in (
            page(operator, "apikey"),
            page(operator, "apikey", "change", row.prefix),
            operator.get("/usage/audit").content.decode(),
            operator.get("/admin/").content.decode(),
        ):
            assert key[0] not in text
            assert row.digest not in text

    def test_what_can_be_changed(self, operator: Client, account: Account) -> None:
        key = services.key_create(actor=COMMAND, account=account).row
        rows = {name: value for name, value in NO_ROWS.items() if name.startswith("budgets")}
        post(
            operator,
            "apikey",
            "change",
            key.prefix,
            **{
                "name": "renamed",
                "scopes": ["usage:read"],
                "account": "shared",
                "digest": "0" * 64,
                "revoked_at_0": "2026-01-01",
                "revoked_at_1": "00:00",
                **rows,
            },
        )
        stored = ApiKey.objects.get()
        assert (stored.name, stored.scopes) == ("renamed", ["usage:read"])
        assert (stored.account_id, stored.digest) == ("research", key.digest)
        assert stored.revoked_at is None
        assert newest() == ("user:carol", "key.update", key.prefix)

    def test_one_that_has_expired_before_it_is_there(self, operator: Client) -> None:
        gone = {"expires_at_0": "2020-01-01", "expires_at_1": "00:00"}
        response = operator.post(url("apikey", "add"), self.FORM | gone)
        assert "would have expired already" in response.content.decode()
        assert not ApiKey.objects.exists()

    def test_no_scope(self, operator: Client) -> None:
        response = operator.post(url("apikey", "add"), self.FORM | {"scopes": []})
        assert "This field is required" in response.content.decode()

    def test_revoke(self, operator: Client, account: Account) -> None:
        key = services.key_create(actor=COMMAND, account=account).row
        form = {"action": "revoke_selected", "_selected_action": [key.prefix]}
        asked = operator.post(url("apikey", "changelist"), form).content.decode()
        assert "Revoke, for good" in asked and key.prefix in asked
        assert ApiKey.objects.get().revoked_at is None
        form["sure"] = "1"
        for words in ("Revoked", "already"):
            response = operator.post(url("apikey", "changelist"), form, follow=True)
            assert words in response.content.decode()
        assert ApiKey.objects.get().revoked_at is not None
        assert newest() == ("user:carol", "key.revoke", key.prefix)
        assert "revoked" in page(operator, "apikey")

    def test_none_is_deleted(self, operator: Client, account: Account) -> None:
        key = services.key_create(actor=COMMAND, account=account).row
        assert operator.get(url("apikey", "delete", key.prefix)).status_code == 403

    def test_who_may_only_look(self, account: Account) -> None:
        key = services.key_create(actor=COMMAND, account=account).row
        user = User.objects.create_user("dave", is_staff=True)
        user.user_permissions.add(Permission.objects.get(codename="view_apikey"))
        client = Client()
        client.force_login(user)
        page(client, "apikey", "change", key.prefix)
        form = {"action": "revoke_selected", "_selected_action": [key.prefix]}
        client.post(url("apikey", "changelist"), form)
        assert ApiKey.objects.get().revoked_at is None
        assert client.post(url("apikey", "add"), self.FORM).status_code == 403


class TestPeople:
    """Django's own pages of people, in the looks of the others, with their accounts."""

    def test_their_changes_are_audited_without_what_is_secret(self, operator: Client) -> None:
        mia = User.objects.create_user("mia", password="a long password")
        where = f"/admin/auth/user/{mia.pk}/password/"
        new = {"password1": "another long one", "password2": "another long one"}
        assert operator.post(where, new | {"usable_password": "true"}).status_code == 302
        mia.refresh_from_db()
        assert mia.check_password("another long one")
        entry = AuditEntry.objects.first()
        assert entry is not None
        assert (entry.actor, entry.action, entry.object_id) == ("user:carol", "user.update", "mia")
        assert "another long one" not in str(entry.detail) and "password" in str(entry.detail)

    def test_their_rights_are_audited_with_both_values(
        self, operator: Client, account: Account
    ) -> None:
        mia = User.objects.create_user("mia")
        form = {
            "username": "mia",
            "is_active": "on",
            "is_staff": "on",
            "date_joined_0": "2026-01-01",
            "date_joined_1": "12:00:00",
            "memberships-TOTAL_FORMS": "1",
            "memberships-INITIAL_FORMS": "0",
            "memberships-0-account": account.name,
            "memberships-0-role": "member",
        }
        response = operator.post(f"/admin/auth/user/{mia.pk}/change/", form)
        assert response.status_code == 302, response.context["errors"]
        entry = AuditEntry.objects.get(action="user.update")
        assert entry.detail["is_staff"] == [False, True]
        assert any(f"in {account.name}" in word for word in entry.detail["changed"])
        text = operator.get("/usage/audit?action=user.update").content.decode()
        assert "is_staff: false → true" in text

    def test_their_removal_is_audited(self, operator: Client) -> None:
        mia = User.objects.create_user("mia")
        operator.post(f"/admin/auth/user/{mia.pk}/delete/", {"post": "yes"})
        assert newest() == ("user:carol", "user.delete", "mia")

    @pytest.mark.parametrize("is_one", [True, False], ids=["one", "selected"])
    def test_the_memberships_of_a_removed_person_have_rows(
        self, operator: Client, account: Account, is_one: bool
    ) -> None:
        mia = User.objects.create_user("mia")
        Membership.objects.create(account=account, user=mia, role=Membership.Role.MEMBER)
        if is_one:
            operator.post(f"/admin/auth/user/{mia.pk}/delete/", {"post": "yes"})
        else:
            chosen = {"action": "delete_selected", "_selected_action": mia.pk, "post": "yes"}
            operator.post("/admin/auth/user/", chosen)
        assert not User.objects.filter(username="mia").exists()
        entries = set(AuditEntry.objects.values_list("actor", "action", "object_id"))
        assert ("user:carol", "membership.remove", f"{account.name}/mia") in entries
        assert ("user:carol", "user.delete", "mia") in entries

    @pytest.mark.parametrize("path", ["user/add/", "group/add/", "user/", "group/"])
    def test_their_pages_look_like_the_others(self, operator: Client, path: str) -> None:
        response = operator.get(f"/admin/auth/{path}")
        assert response.status_code == 200
        if path == "user/add/":
            assert response.content.decode().count("border-base-200") > 5
            widget = response.context["adminform"].form.fields["username"].widget
            assert "rounded" in widget.attrs["class"]


def test_breadcrumbs_keep_names_as_they_are(operator: Client, account: Account) -> None:
    shown = page(operator, "account", "change", account.pk)
    crumbs = [words.strip() for words in re.findall(r"leading-5 min-w-0[^>]*>([^<]*)<", shown)]
    assert crumbs[-2:] == ["Accounts", "research"]
