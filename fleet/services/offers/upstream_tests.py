"""Tests an upstream by asking it, and records the models that it lists."""

from __future__ import annotations

from django.conf import settings

from fleet.models import Upstream
from fleet.services.offers.upstreams import upstream_discovered
from fleet.upstreams.probe import Probed, probe
from fleet.upstreams.secret import unseal
from metering.actor import Actor


def upstream_test(
    *, actor: Actor, upstream: Upstream, model: str = "", tries_paid: bool = False
) -> Probed:
    """Asks for up to ``TIME_LIMIT_S``; nothing is locked meanwhile. ``model``, ``tries_paid``: as
    ``probe`` has them. Raises ``UpstreamSecretError``."""
    entry = upstream.entry()
    secret = unseal(entry.sealed_secret, settings.SECRET_KEY) if entry.sealed_secret else ""
    probed = probe(entry, secret, model=model, tries_paid=tries_paid)
    if probed.models is not None:
        upstream_discovered(actor=actor, upstream=upstream, models=probed.models)
    return probed
