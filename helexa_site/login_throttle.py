"""Refuses logins after too many failures: django-axes with our limits, addresses and page.

A try is counted before its password is looked at, and a login takes its user's count back. Counted
afterwards, any number of tries at once would all be looked at before the first of them counts.

A row is a user and an address, and holds nothing else of a request. No log has the name that was
typed: people type passwords there.
"""

from __future__ import annotations

import logging
import math
from datetime import datetime, timedelta
from typing import Any

from axes.handlers.database import AxesDatabaseHandler
from axes.handlers.proxy import AxesProxyHandler
from axes.models import AccessAttempt
from django.conf import settings
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser
from django.db import IntegrityError, transaction
from django.db.models import F, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import add_never_cache_headers

from helexa_site.client_address import client_address, counted_address
from helexa_site.login_limits import (
    COOL_OFF,
    FAILURES_PER_ADDRESS,
    FAILURES_PER_USER,
    free_at,
)
from metering.actor import user_actor
from metering.services.audit import audit_entry_create

logger = logging.getLogger(__name__)

LIMITS = (FAILURES_PER_USER, FAILURES_PER_ADDRESS)
"""In the order of AXES_LOCKOUT_PARAMETERS."""
MAX_USERNAME_CHARACTERS = 150
"""As Django's users have; the login form refuses longer ones."""
Credentials = dict[str, Any]


class LoginRequest(HttpRequest):
    """What django-axes writes on a request that it has seen."""

    axes_ip_address: str
    axes_attempt_time: datetime
    axes_locked_out: bool
    axes_credentials: Credentials | None


class LoginThrottle(AxesDatabaseHandler):  # type: ignore[misc]
    """What django-axes asks whether a try may be made, and tells what became of it."""

    def is_locked(self, request: LoginRequest, credentials: Credentials | None = None) -> bool:
        """Counts the try where it may be made. What is refused is not counted: it would prolong
        the refusal."""
        _forget_before(request.axes_attempt_time - COOL_OFF)
        if self.locked_until(request, credentials):
            return True
        _count(request, typed_username(request, credentials))
        return self.locked_until(request, credentials, num_allowed=1) is not None

    def locked_until(
        self, request: LoginRequest, credentials: Credentials | None, *, num_allowed: int = 0
    ) -> datetime | None:
        """``None``: another try may be made. ``num_allowed``: tries on their way that are counted
        already."""
        refusals = [
            free_at(
                attempts.values_list("attempt_time", "failures_since_start"), limit + num_allowed
            )
            for attempts, limit in zip(
                self.get_user_attempts(request, credentials), LIMITS, strict=True
            )
        ]
        return max((until for until in refusals if until), default=None)

    def user_login_failed(
        self,
        sender: object,
        credentials: Credentials,
        request: LoginRequest | None = None,
        **_: Any,
    ) -> None:
        if request is None:
            return
        request.axes_credentials = credentials
        logger.warning("a login from %s failed", request.axes_ip_address)
        if self.locked_until(request, credentials):
            logger.warning("logins from %s are refused for now", request.axes_ip_address)
            request.axes_locked_out = True

    def user_logged_in(
        self, sender: object, request: LoginRequest, user: AbstractBaseUser, **_: Any
    ) -> None:
        _attempts_of(request, user.get_username()).delete()
        if request.method is None:
            return  # a session that a program has made
        name = user.get_username()
        with transaction.atomic():
            audit_entry_create(
                actor=user_actor(name),
                action="login",
                object_id=name,
                detail={"address": request.axes_ip_address},
            )

    def user_logged_out(self, *_: Any, **__: Any) -> None:
        """Nothing is counted by it."""


def typed_username(request: HttpRequest, credentials: Credentials | None) -> str:
    """AXES_USERNAME_CALLABLE."""
    typed = (credentials or {}).get(get_user_model().USERNAME_FIELD) or ""
    return str(typed)[:MAX_USERNAME_CHARACTERS]


def request_address(request: HttpRequest) -> str:
    """AXES_CLIENT_IP_CALLABLE."""
    return counted_address(
        client_address(
            request.META.get("REMOTE_ADDR", ""),
            request.META.get("HTTP_X_FORWARDED_FOR", ""),
            settings.CONFIG.trusted_proxies,
        )
    )


def locked_out(request: LoginRequest, *_: object) -> HttpResponse:
    """AXES_LOCKOUT_CALLABLE: the page that says when to try again. The request has its credentials;
    what else is passed differs between WSGI and ASGI."""
    now = request.axes_attempt_time
    throttle: LoginThrottle = AxesProxyHandler.get_implementation()
    until = throttle.locked_until(request, request.axes_credentials) or now
    wait_s = max(1, math.ceil((until - now).total_seconds()))
    context = {
        **admin.site.each_context(request),
        "title": "Too many failed logins",
        "minutes": math.ceil(wait_s / 60),
        "until": now + timedelta(seconds=wait_s),
    }
    response = render(request, "admin/locked_out.html", context, status=429)
    response["Retry-After"] = str(wait_s)
    add_never_cache_headers(response)
    return response


def _attempts_of(request: LoginRequest, username: str) -> QuerySet[Any]:
    attempts: QuerySet[Any] = AccessAttempt.objects.filter(
        username=username, ip_address=request.axes_ip_address, user_agent=""
    )
    return attempts


def _count(request: LoginRequest, username: str) -> None:
    """One more, whoever else counts at the same time."""
    if _count_again(request, username):
        return
    try:
        with transaction.atomic():
            AccessAttempt.objects.create(
                username=username,
                ip_address=request.axes_ip_address,
                user_agent="",
                failures_since_start=1,
            )
    except IntegrityError:
        _count_again(request, username)


def _count_again(request: LoginRequest, username: str) -> bool:
    attempts = _attempts_of(request, username)
    changed = attempts.update(
        failures_since_start=F("failures_since_start") + 1,
        attempt_time=request.axes_attempt_time,
    )
    return changed > 0


def _forget_before(oldest: datetime) -> None:
    AccessAttempt.objects.filter(attempt_time__lt=oldest).delete()
