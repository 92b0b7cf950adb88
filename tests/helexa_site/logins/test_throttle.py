"""Guesses of an operator's password are few: by user and address, and by address."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timedelta
from ipaddress import ip_network

import pytest
from django.conf import settings
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.core.management import call_command
from django.http import HttpResponse
from django.test import Client, RequestFactory
from django.utils import timezone

from helexa_site.logins import COOL_OFF, LIMITS, MAX_USERNAME_CHARACTERS
from helexa_site.models import LoginAttempt
from metering.models import AuditEntry

pytestmark = pytest.mark.django_db

PASSWORD = "correct horse battery"
WRONG = "wrong-and-never-written-down"
COOL_OFF_S = 15 * 60
PER_USER, PER_ADDRESS = 5, 50


@pytest.fixture(autouse=True)
def users() -> None:
    for name in ("alice", "bob"):
        User.objects.create_superuser(name, password=PASSWORD)


@pytest.fixture
def clock(monkeypatch) -> list[datetime]:
    """What time it is: the only entry."""
    now = [timezone.now()]
    monkeypatch.setattr("django.utils.timezone.now", lambda: now[0])
    return now


def log_in(
    password: str = WRONG, *, user: str = "alice", peer: str = "192.0.2.1", **headers: str
) -> HttpResponse:
    data = {"username": user, "password": password}
    return Client(REMOTE_ADDR=peer).post("/admin/login/", data, headers=headers)


def fail(times: int, **where: str) -> list[int]:
    return [log_in(**where).status_code for _ in range(times)]


def is_in(response: HttpResponse) -> bool:
    return response.status_code == 302


def test_the_sixth_try_is_refused_whatever_the_password_until_the_cool_off(clock) -> None:
    assert fail(PER_USER) == [200] * (PER_USER - 1) + [429]
    response = log_in(PASSWORD)
    assert response.status_code == 429
    assert response["Content-Type"].startswith("text/html")
    assert COOL_OFF_S - 60 < int(response["Retry-After"]) <= COOL_OFF_S
    assert "no-store" in response["Cache-Control"]
    assert "Too many failed logins" in response.text and "15 minutes" in response.text
    assert "_auth_user_id" not in response.client.session
    assert is_in(log_in(PASSWORD, user="bob")), "others are not locked out"
    assert is_in(log_in(PASSWORD, peer="192.0.2.2"))
    assert LIMITS == (PER_USER, PER_ADDRESS) and COOL_OFF.total_seconds() == COOL_OFF_S
    clock[0] += timedelta(seconds=COOL_OFF_S - 10)
    response = log_in(PASSWORD)  # tries meanwhile do not prolong it
    assert response.status_code == 429 and "1 minute" in response.text
    assert 0 < int(response["Retry-After"]) <= 10
    clock[0] += timedelta(seconds=int(response["Retry-After"]) + 1)
    assert is_in(log_in(PASSWORD))
    log_in(user="nobody")
    assert [attempt.username for attempt in LoginAttempt.objects.all()] == ["nobody"]
    LoginAttempt.objects.all().delete()
    for number in range(PER_ADDRESS - 1):  # an address that goes through names waits too
        LoginAttempt.objects.create(
            username=f"nobody{number}",
            address="192.0.2.1",
            failures=1,
            last_at=clock[0] + timedelta(seconds=number),
        )
    clock[0] += timedelta(seconds=PER_ADDRESS - 1)
    assert log_in(user="last").status_code == 429
    wait_s = int(log_in(PASSWORD)["Retry-After"])
    assert wait_s == COOL_OFF_S - PER_ADDRESS + 1
    assert is_in(log_in(PASSWORD, peer="192.0.2.2"))
    clock[0] += timedelta(seconds=wait_s + 1)
    assert is_in(log_in(PASSWORD)), "until enough failures are old"


def test_a_login_has_a_row_clears_what_that_user_missed_alone_and_leads_to_no_other_host(
    capsys,
) -> None:
    """Otherwise a user with an account could guess others' passwords without end."""
    for user in ("alice", "bob"):
        fail(PER_USER - 1, user=user)
    assert not AuditEntry.objects.exists()
    assert is_in(log_in(PASSWORD))
    (row,) = AuditEntry.objects.all()
    assert (row.actor, row.action, row.object_id) == ("user:alice", "login", "alice")
    assert row.detail == {"address": "192.0.2.1"}
    Client().force_login(User.objects.get(username="bob"))
    assert AuditEntry.objects.count() == 1, "a program made that session"
    fail(PER_USER - 1)
    assert is_in(log_in(PASSWORD))
    assert log_in(user="bob").status_code == 429
    fail(PER_USER)
    call_command("logins", "--reset", "--user", "bob")  # the operator lets them in again
    assert is_in(log_in(PASSWORD, user="bob"))
    assert log_in(PASSWORD).status_code == 429
    call_command("logins", "--reset")
    assert "1 forgotten" in capsys.readouterr().out
    for page in ("/login/", "/admin/login/"):
        for elsewhere in ("https://evil.example/", "//evil.example/", "/\\\\evil"):
            data = {"username": "alice", "password": PASSWORD, "next": elsewhere}
            response = Client().post(page, data, query_params={"next": elsewhere})
            assert response.status_code == 302
            assert response["Location"].startswith("/") and "evil" not in response["Location"]


def test_only_a_trusted_proxys_forwarded_address_counts(monkeypatch) -> None:
    config = replace(settings.CONFIG, trusted_proxies=(ip_network("10.0.0.0/8"),))
    monkeypatch.setattr(settings, "CONFIG", config)
    for peer, forwarded_for, counted in (
        ("192.0.2.1", "198.51.100.{}", "192.0.2.1"),  # forged: no proxy sent it
        # Addresses left of the client's own one were sent by it.
        ("10.0.0.1", "203.0.113.{}, 198.51.100.7, 10.9.9.9", "198.51.100.7"),
    ):
        LoginAttempt.objects.all().delete()
        for number in range(PER_USER):
            log_in(peer=peer, x_forwarded_for=forwarded_for.format(number))
        response = log_in(PASSWORD, peer=peer, x_forwarded_for=forwarded_for.format(77))
        assert response.status_code == 429
        assert LoginAttempt.objects.get().address == counted
        assert is_in(log_in(PASSWORD, peer="10.0.0.1", x_forwarded_for="198.51.100.8"))


def test_no_password_is_kept_or_logged(caplog) -> None:
    caplog.set_level(logging.DEBUG)
    fail(PER_USER + 1)
    log_in(PASSWORD, user="bob")
    log_in(user=WRONG)  # typed into the wrong field
    (rows, logs) = (str(list(LoginAttempt.objects.values())), caplog.text)
    assert PASSWORD not in rows + logs
    assert rows.count(WRONG) == 1  # as the name by which it counts, until it is forgotten
    assert WRONG not in logs and "192.0.2.1" in logs
    LoginAttempt.objects.all().delete()
    request = RequestFactory().post("/", REMOTE_ADDR="192.0.2.1")
    assert authenticate(request, username="x" * 100_000, password=WRONG) is None
    assert LoginAttempt.objects.get().username == "x" * MAX_USERNAME_CHARACTERS
