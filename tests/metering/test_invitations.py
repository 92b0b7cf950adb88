"""People are invited by a link at which they choose their password, and change it themselves."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from metering.models import Account, AuditEntry, Membership
from tests.metering.callers import newest, person, staff

pytestmark = pytest.mark.django_db

ADD = "/admin/auth/user/add/"
COUNTS = {"memberships-TOTAL_FORMS": "1", "memberships-INITIAL_FORMS": "0"}
MEMBER = COUNTS | {"memberships-0-account": "research", "memberships-0-role": "owner"}
FORM = {"username": "mia", "email": "mia@example.org"} | MEMBER
LINK = re.compile(r"http://testserver(/welcome/[^<\s]+)")
NEW = {"new_password1": "a long password", "new_password2": "a long password"}


def invited(operator: Client, **form: str) -> str:
    """The link's path."""
    response = operator.post(ADD, FORM | form)
    assert response.status_code == 200 and "no-store" in response["Cache-Control"]
    found = LINK.search(response.text)
    assert found is not None, response.context["errors"]
    return found[1]


def choose(path: str, form: dict[str, str] = NEW) -> tuple[Client, str]:
    """Chooses a password as their browser does: the page, then its form. Returns the client and the
    last page."""
    client = Client()
    page = client.get(path, follow=True)
    if not page.redirect_chain:
        return client, page.text
    return client, client.post(page.redirect_chain[-1][0], form, follow=True).text


def test_who_is_added_chooses_the_password_once(operator: Client, account: Account) -> None:
    link = invited(operator)
    mia = User.objects.get(username="mia")
    assert mia.email == "mia@example.org" and not mia.has_usable_password()
    assert not mia.is_staff
    member = Membership.objects.get(user=mia)
    assert (member.account, member.role) == (account, "owner")
    _, text = choose(link, dict.fromkeys(NEW, "12345678"))
    assert "too common" in text
    assert 'id="playground"' in choose(link)[1], "logged in, where members start"
    _, text = choose(link, dict.fromkeys(NEW, "another one"))
    assert "This link has been used" in text
    assert "This link has been used" in choose("/welcome/MQ/made-up/")[1]
    mia.refresh_from_db()
    assert mia.check_password("a long password")
    entries = set(AuditEntry.objects.values_list("actor", "action", "object_id"))
    assert {
        ("user:carol", "user.create", "mia"),
        ("user:carol", "membership.set", "research/mia"),
        ("user:mia", "user.update", "mia"),
    } <= entries
    assert "a long password" not in str(list(AuditEntry.objects.values_list("detail")))
    assert "already exists" in operator.post(ADD, FORM).text and User.objects.count() == 2
    Membership.objects.all().delete()
    alone = {"memberships-0-account": "", "memberships-0-role": "member", "username": "noa"}
    invited(operator, **alone)
    assert not Membership.objects.exists()


def test_an_invitation_is_made_again(operator: Client, account: Account) -> None:
    person("mia", account)
    mia = User.objects.get(username="mia")
    form = {"action": "invite_again", "_selected_action": [str(mia.pk)]}
    asked = operator.post("/admin/auth/user/", form).text
    assert "Invite again" in asked and "/welcome/" not in asked
    found = LINK.search(operator.post("/admin/auth/user/", {**form, "sure": "1"}).text)
    assert found is not None and newest() == ("user:carol", "user.invite", "mia")
    choose(found[1])
    mia.refresh_from_db()
    assert mia.check_password("a long password")


def test_who_may_give_no_memberships_gives_none(account: Account) -> None:
    client = staff("dave", "add_user", "change_user")
    assert '-0-account"' not in client.get(ADD).text
    invited(client)
    assert not Membership.objects.exists()
    client = staff("looks", "view_user")
    assert client.post(ADD, FORM).status_code == 403
    chosen = [str(User.objects.get(username="looks").pk)]
    form = {"action": "invite_again", "_selected_action": chosen, "sure": "1"}
    assert "/welcome/" not in client.post("/admin/auth/user/", form, follow=True).text


def test_members_change_their_password(account: Account) -> None:
    mia = person("mia", account, password="a long password")
    new = {"old_password": "a long password", "new_password1": "x7-b", "new_password2": "x7-b"}
    assert "too short" in mia.post("/password/", new).text
    new |= {"new_password1": "another one, longer", "new_password2": "another one, longer"}
    assert "Your password is changed" in mia.post("/password/", new, follow=True).text
    assert User.objects.get().check_password("another one, longer")
    assert newest() == ("user:mia", "user.update", "mia")
    assert Client().get("/password/")["Location"].startswith("/login/")


def test_the_logins_speak_to_members_too(account: Account) -> None:
    person("mia", account, password="her own")
    client = Client()
    for path in ("/login/", "/admin/login/"):
        text = client.post(path, {"username": "mia", "password": "wrong"}).text
        assert "do not belong together" in text and "staff" not in text
    text = client.post("/admin/login/", {"username": "mia", "password": "her own"}).text
    assert "Members log in at /login/" in text and "_auth_user_id" not in client.session
