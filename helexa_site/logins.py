"""Logging in and out, and the refusal of logins after too many failures.

    log-in form ─▶ ThrottleBackend ─ counts the attempt ─▶ Django's backend compares the password
                        │                                      │
                        ▼ too many                             ▼ user_login_failed, user_logged_in
                   PermissionDenied ─▶ request's refusal ─▶ LockoutMiddleware: 429

An attempt is counted before its password is compared, and a login removes its user's count.
Otherwise any number of simultaneous attempts would be compared before the first one counts. No log
contains the typed name: people type passwords there.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.models import AbstractBaseUser
from django.contrib.auth.signals import user_logged_in, user_login_failed
from django.contrib.auth.views import LoginView, LogoutView
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.db.models import F
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.cache import add_never_cache_headers
from django.utils.deprecation import MiddlewareMixin

from helexa_site.addresses import client_address, counted_address
from helexa_site.models import LoginAttempt
from metering.audit import audit_entry_create, user_actor

if TYPE_CHECKING:
    StyledForm = AuthenticationForm
else:
    from unfold.forms import AuthenticationForm as StyledForm


FAILURES_PER_USER = 5
"""Failures of one user from one address: a stranger elsewhere cannot lock the user out."""
FAILURES_PER_ADDRESS = 50
"""Failures of all users from one address: many may be behind it."""
COOL_OFF = timedelta(minutes=15)
"""A failure counts for this long after the last one of the same user and address."""


def free_at(failures: Iterable[tuple[datetime, int]], limit: int) -> datetime | None:
    """``None``: fewer are left now. ``failures``: each user's last time and number."""
    oldest_first = sorted(failures)
    num_left = sum(count for _, count in oldest_first)
    freed_at = None
    for last_at, count in oldest_first:
        if num_left < limit:
            break
        num_left -= count
        freed_at = last_at + COOL_OFF
    return freed_at


logger = logging.getLogger(__name__)

LIMITS = (FAILURES_PER_USER, FAILURES_PER_ADDRESS)
MAX_USERNAME_CHARACTERS = 150
"""The longest name that Django's users have; the login form refuses longer ones."""
REFUSAL = "login_refused_until"
Credentials = dict[str, Any]


class ThrottleBackend:
    """The first backend. It has no sessions, and so no ``get_user``."""

    def authenticate(self, request: HttpRequest | None, **credentials: Any) -> None:
        """Counting a refused attempt would prolong the refusal. Raises ``PermissionDenied``."""
        if request is None:
            return  # a program has the password, and no address
        now = timezone.now()
        username, address = typed_username(credentials), request_address(request)
        LoginAttempt.objects.filter(last_at__lt=now - COOL_OFF).delete()
        until = locked_until(username, address, now)
        if until is None:
            LoginAttempt.objects.update_or_create(
                username=username,
                address=address,
                defaults={"failures": F("failures") + 1, "last_at": now},
                create_defaults={"failures": 1, "last_at": now},
            )
            until = locked_until(username, address, now, num_allowed=1)
        if until is not None:
            setattr(request, REFUSAL, until)
            raise PermissionDenied


def locked_until(
    username: str, address: str, now: datetime, *, num_allowed: int = 0
) -> datetime | None:
    """``None``: accepted. ``num_allowed``: running attempts that are counted already."""
    of_address = LoginAttempt.objects.filter(address=address, last_at__gte=now - COOL_OFF)
    counted = (of_address.filter(username=username), of_address)
    refusals = [
        free_at(attempts.values_list("last_at", "failures"), limit + num_allowed)
        for attempts, limit in zip(counted, LIMITS, strict=True)
    ]
    return max((until for until in refusals if until), default=None)


@receiver(user_login_failed)
def login_failed(
    sender: object, credentials: Credentials, request: HttpRequest | None = None, **_: Any
) -> None:
    if request is None:
        return
    now, address = timezone.now(), request_address(request)
    logger.warning("a login from %s failed", address)
    if until := locked_until(typed_username(credentials), address, now):
        logger.warning("logins from %s are refused for now", address)
        setattr(request, REFUSAL, until)


@receiver(user_logged_in)
def logged_in(sender: object, request: HttpRequest, user: AbstractBaseUser, **_: Any) -> None:
    name, address = user.get_username(), request_address(request)
    LoginAttempt.objects.filter(username=name, address=address).delete()
    if request.method is None:
        return  # a session that a program has made
    with transaction.atomic():
        audit_entry_create(
            actor=user_actor(name),
            action="login",
            object_id=name,
            detail={"address": address},
        )


def typed_username(credentials: Credentials) -> str:
    typed = credentials.get(get_user_model().USERNAME_FIELD) or ""
    return str(typed)[:MAX_USERNAME_CHARACTERS]


def request_address(request: HttpRequest) -> str:
    return counted_address(
        client_address(
            request.META.get("REMOTE_ADDR", ""),
            request.META.get("HTTP_X_FORWARDED_FOR", ""),
            settings.CONFIG.trusted_proxies,
        )
    )


class LockoutMiddleware(MiddlewareMixin):
    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        until = getattr(request, REFUSAL, None)
        return response if until is None else locked_out(request, until)


def locked_out(request: HttpRequest, until: datetime) -> HttpResponse:
    wait_s = max(1, math.ceil((until - timezone.now()).total_seconds()))
    context = {
        **admin.site.each_context(request),
        "title": "Too many failed logins",
        "minutes": math.ceil(wait_s / 60),
        "until": until,
    }
    response = render(request, "admin/locked_out.html", context, status=429)
    response["Retry-After"] = str(wait_s)
    add_never_cache_headers(response)
    return response


class LoginForm(StyledForm):
    error_messages = {
        "invalid_login": "This name and password do not belong together. Both are case-sensitive. "
        "If you have forgotten yours, an operator sends you a link that sets another one.",
        "inactive": "This user is not active any more: an operator can change that.",
    }

    def confirm_login_allowed(self, user: AbstractBaseUser) -> None:
        AuthenticationForm.confirm_login_allowed(self, user)  # type: ignore[arg-type]


class OperatorLoginForm(LoginForm):
    error_messages = LoginForm.error_messages | {
        "not_an_operator": "These pages are for operators. Members log in at {login}.",
    }

    def confirm_login_allowed(self, user: AbstractBaseUser) -> None:
        super().confirm_login_allowed(user)
        if not getattr(user, "is_staff", False):
            message = self.error_messages["not_an_operator"].format(login=reverse("login"))
            raise ValidationError(message, code="not_an_operator")


class Login(LoginView):
    template_name = "pages/login.html"
    authentication_form = LoginForm
    redirect_authenticated_user = True

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        context = super().get_context_data(**kwargs)
        return {
            **admin.site.each_context(self.request),
            **context,
            "title": "Log in",
            "app_path": self.request.get_full_path(),
        }


class Logout(LogoutView):
    def get_default_redirect_url(self) -> str:
        return reverse("login")
