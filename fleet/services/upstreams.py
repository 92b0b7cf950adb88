"""Writes to the upstreams. A secret is sealed before it is stored, and is in no audit entry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from fleet import selectors
from fleet.errors import UpstreamInUseError, UpstreamValueError
from fleet.models import Upstream
from fleet.nouns import UPSTREAMS
from fleet.services.load_measurements import catalogue_changed
from fleet.upstream_http import KnownModel
from fleet.upstream_probe import Probed, probe
from fleet.upstreams import (
    check_secret,
    check_upstream,
    origin,
    seal,
    unseal,
    untranslated_defaults,
)
from metering.audit import Actor, audit_entry_create, changes_of, values_of

CHANGEABLE = tuple(field.name for field in UPSTREAMS.changeable if field.name != "key")
DECIDE_MODELS = frozenset({"url", "dialect"})
KEY_SET, KEY_REMOVED = "set", "removed"


def upstream_create(*, actor: Actor, name: str, url: str, key: str = "", **values: Any) -> Upstream:
    """``key`` is its secret; ``values`` are columns by name. Raises ``UpstreamValueError``."""
    upstream = Upstream(name=name, url=url.rstrip("/"), **values)
    _key_set(upstream, key)
    with transaction.atomic():
        upstream_check(upstream=upstream)
        upstream.save(force_insert=True)
        detail = values_of(upstream, CHANGEABLE) | ({"key": KEY_SET} if key else {})
        audit_entry_create(actor=actor, action="upstream.create", object_id=name, detail=detail)
    return upstream


def upstream_update(
    *, actor: Actor, upstream: Upstream, changed_fields: Sequence[str], key: str | None = None
) -> None:
    """``key``: ``None`` keeps it, empty removes it. A URL of another host needs the key again, so
    that no other host ever gets it. Raises ``UpstreamValueError``."""
    upstream.url = upstream.url.rstrip("/")
    with transaction.atomic():
        before = Upstream.objects.select_for_update().get(pk=upstream.pk)
        is_elsewhere = origin(upstream.url) != origin(before.url)
        if is_elsewhere and before.has_key and key is None:
            raise UpstreamValueError(
                "url", "A URL of another host, port or scheme needs the key again"
            )
        fields = [*changed_fields, "updated_at"]
        if key is not None:
            _key_set(upstream, key)
            fields.append("sealed_secret")
        if DECIDE_MODELS & set(changed_fields):
            upstream.known_models, upstream.discovered_at = [], None
            fields += ["known_models", "discovered_at"]
        upstream_check(upstream=upstream)
        _check_its_models(upstream)
        upstream.save(update_fields=fields)
        changes: dict[str, Any] = dict(changes_of(before, upstream, changed_fields))
        if key is not None:
            changes["key"] = KEY_SET if key else KEY_REMOVED
        if changes:
            audit_entry_create(
                actor=actor, action="upstream.update", object_id=upstream.name, detail=changes
            )
        catalogue_changed()


def upstream_delete(*, actor: Actor, upstream: Upstream) -> None:
    """Raises ``UpstreamInUseError``."""
    name = upstream.name
    with transaction.atomic():
        if models := selectors.models_of_upstream(name):
            names = ", ".join(model.name for model in models)
            raise UpstreamInUseError(f"{name} serves {names}: remove these models first")
        upstream.delete()
        audit_entry_create(actor=actor, action="upstream.delete", object_id=name)
        catalogue_changed()


def upstream_discovered(*, actor: Actor, upstream: Upstream, models: Sequence[KnownModel]) -> None:
    upstream.known_models = [asdict(model) for model in models]
    upstream.discovered_at = timezone.now()
    with transaction.atomic():
        upstream.save(update_fields=["known_models", "discovered_at"])
        audit_entry_create(
            actor=actor,
            action="upstream.discover",
            object_id=upstream.name,
            detail={"num_models": len(models)},
        )


def upstream_check(*, upstream: Upstream) -> None:
    """Raises ``UpstreamValueError``."""
    check_upstream(upstream.entry())
    if Upstream.objects.filter(name=upstream.name).exclude(pk=upstream.pk).exists():
        raise UpstreamValueError("name", f"There is an upstream named {upstream.name!r} already")


def _check_its_models(upstream: Upstream) -> None:
    models = selectors.models_of_upstream(upstream.name)
    for model in models:
        settings = model.settings()
        defaults = untranslated_defaults(upstream.entry().dialect, settings.sampling_defaults)
        if defaults and not settings.has_files:
            raise UpstreamValueError(
                "dialect",
                f"It serves {model.name}, whose {defaults[0]} is not translated for the dialect "
                f"{upstream.dialect}",
            )
    passed = [model.name for model in models if model.settings().task != "text"]
    if upstream.dialect != "openai" and passed:
        raise UpstreamValueError(
            "dialect",
            f"{', '.join(passed)} is passed through to it, which only the dialect openai has",
        )
    kept = [model.name for model in models if not model.settings().may_leave_network]
    if upstream.leaves_network and kept:
        raise UpstreamValueError(
            "leaves_network",
            f"Requests of {', '.join(kept)} may not leave your network, by may_leave_network",
        )


def _key_set(upstream: Upstream, key: str) -> None:
    check_secret(key)
    upstream.sealed_secret = seal(key, settings.SECRET_KEY) if key else ""


def upstream_test(
    *, actor: Actor, upstream: Upstream, model: str = "", tries_paid: bool = False
) -> Probed:
    """Takes up to ``TIME_LIMIT_S``, without a lock. Raises ``UpstreamSecretError``."""
    entry = upstream.entry()
    secret = unseal(entry.sealed_secret, settings.SECRET_KEY) if entry.sealed_secret else ""
    probed = probe(entry, secret, model=model, tries_paid=tries_paid)
    if probed.models is not None:
        upstream_discovered(actor=actor, upstream=upstream, models=probed.models)
    return probed
