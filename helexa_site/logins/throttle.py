"""Refuses logins after too many failures: an authentication backend, and the page for it.

    log-in form ─▶ ThrottleBackend ─ counts the attempt ─▶ Django's backend compares the password
                        │                                      │
                        ▼ too many                             ▼ user_login_failed, user_logged_in
                   PermissionDenied ─▶ request.login_refusal ─▶ lockout_middleware: 429

An attempt is counted before its password is compared, and a login removes its user's count. Counted
afterwards, any number of simultaneous attempts would all be compared before the first one counts.

A row is a user and an address, and holds nothing else of a request. No log contains the name that
was typed: people type passwords there.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser
from django.contrib.auth.signals import user_logged_in, user_login_failed
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, transaction
from django.db.models import F, QuerySet
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.cache import add_never_cache_headers
from django.utils.decorators import sync_and_async_middleware

from helexa_site.logins.limits import (
    COOL_OFF,
    FAILURES_PER_ADDRESS,
    FAILURES_PER_USER,
    free_at,
)
from helexa_site.models import LoginAttempt
from helexa_site.web.client_address import client_address, counted_address
from metering.actor import user_actor
from metering.services.audit import audit_entry_create

logger = logging.getLogger(__name__)

LIMITS = (FAILURES_PER_USER, FAILURES_PER_ADDRESS)
"""The limits of one user from one address, and of all users from it."""
MAX_USERNAME_CHARACTERS = 150
"""The longest name that Django's users have; the login form refuses longer ones."""
REFUSAL = "login_refusal"
"""The attribute of a request whose login was refused."""
Credentials = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    at: datetime
    until: datetime
    """When another attempt is accepted."""


class ThrottleBackend:
    """The first backend: it refuses an attempt, or leaves it to the next one. Without ``get_user``,
    since no session is of this backend."""

    def authenticate(self, request: HttpRequest | None, **credentials: Any) -> None:
        """Counts an attempt that is accepted. A refused one is not counted: that would prolong the
        refusal. Raises ``PermissionDenied``."""
        if request is None:
            return  # a program has the password, and no address
        now = timezone.now()
        username, address = typed_username(credentials), request_address(request)
        LoginAttempt.objects.filter(last_at__lt=now - COOL_OFF).delete()
        until = locked_until(username, address, now)
        if until is None:
            _count(username, address, now)
            until = locked_until(username, address, now, num_allowed=1)
        if until is not None:
            setattr(request, REFUSAL, Refusal(at=now, until=until))
            raise PermissionDenied


def locked_until(
    username: str, address: str, now: datetime, *, num_allowed: int = 0
) -> datetime | None:
    """``None``: another attempt is accepted. ``num_allowed``: attempts under way that are counted
    already."""
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
        setattr(request, REFUSAL, Refusal(at=now, until=until))


@receiver(user_logged_in)
def logged_in(sender: object, request: HttpRequest, user: AbstractBaseUser, **_: Any) -> None:
    name = user.get_username()
    _attempts_of(name, request_address(request)).delete()
    if request.method is None:
        return  # a session that a program has made
    with transaction.atomic():
        audit_entry_create(
            actor=user_actor(name),
            action="login",
            object_id=name,
            detail={"address": request_address(request)},
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


@sync_and_async_middleware
def lockout_middleware(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Answers a refused login with a page that names the wait until the next try."""
    if iscoroutinefunction(get_response):
        page = sync_to_async(locked_out, thread_sensitive=True)

        async def answer_later(request: HttpRequest) -> Any:
            response = await get_response(request)
            refusal = getattr(request, REFUSAL, None)
            return response if refusal is None else await page(request, refusal)

        return answer_later

    def answer(request: HttpRequest) -> Any:
        response = get_response(request)
        refusal = getattr(request, REFUSAL, None)
        return response if refusal is None else locked_out(request, refusal)

    return answer


def locked_out(request: HttpRequest, refusal: Refusal) -> HttpResponse:
    wait_s = max(1, math.ceil((refusal.until - refusal.at).total_seconds()))
    context = {
        **admin.site.each_context(request),
        "title": "Too many failed logins",
        "minutes": math.ceil(wait_s / 60),
        "until": refusal.until,
    }
    response = render(request, "admin/locked_out.html", context, status=429)
    response["Retry-After"] = str(wait_s)
    add_never_cache_headers(response)
    return response


def _attempts_of(username: str, address: str) -> QuerySet[LoginAttempt]:
    return LoginAttempt.objects.filter(username=username, address=address)


def _count(username: str, address: str, now: datetime) -> None:
    """One attempt more, while others may count at the same time."""
    if _count_again(username, address, now):
        return
    try:
        with transaction.atomic():
            LoginAttempt.objects.create(username=username, address=address, failures=1, last_at=now)
    except IntegrityError:
        _count_again(username, address, now)


def _count_again(username: str, address: str, now: datetime) -> bool:
    changed = _attempts_of(username, address).update(failures=F("failures") + 1, last_at=now)
    return changed > 0
