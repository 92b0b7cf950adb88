"""What works of an upstream's API: small requests of its own, each bounded in bytes and time.

    models ─▶ stream ─▶ tools ─▶ schema ─▶ images ─▶ counting ─▶ paid ones, where asked for

A probe that an endpoint refuses does not work there; one that was not sent is ``None``. Details are
our words and the endpoint's status, and none of its text.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.errors import UpstreamUnavailableError
from fleet.upstreams import paid_probes as paid
from fleet.upstreams.chat_probes import STEPS, Asking, Step
from fleet.upstreams.discovery import KnownModel, discover
from fleet.upstreams.entry import UpstreamEntry
from fleet.upstreams.http import opened

if TYPE_CHECKING:
    import httpx2

TIME_LIMIT_S = 50.0
"""All probes take as long at most: shorter than commands wait for a server's answer."""
MODELS = "models"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    what: str
    works: bool | None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    probes: tuple[Probe, ...]
    models: tuple[KnownModel, ...] | None
    """``None``: the endpoint did not list them."""
    model: str = ""


def probe(
    entry: UpstreamEntry, secret: str, *, model: str = "", tries_paid: bool = False
) -> Probed:
    """``model``: empty tests the first listed one that chats, by its name. ``tries_paid``: also
    what may cost money, with ``model``, else with those that are named like one. Raises
    nothing."""
    until_s = time.monotonic() + TIME_LIMIT_S
    try:
        with opened(entry, secret) as client:
            try:
                models = tuple(discover(client, entry))
                listed = Probe(what=MODELS, works=True, detail=f"{len(models)} listed")
            except UpstreamUnavailableError as error:
                models, listed = None, Probe(what=MODELS, works=False, detail=str(error))
            known = [one.id for one in models or ()]
            tested = model or paid.chat_model(known)
            others = _probes(client, entry, tested, until_s)
            if entry.dialect == "openai":
                others += _paid(client, entry, model, known if tries_paid else None, until_s)
            return Probed(probes=(listed, *others), models=models, model=tested)
    except UpstreamUnavailableError as error:
        return Probed(probes=(Probe(what=MODELS, works=False, detail=str(error)),), models=None)


def _probes(client: httpx2.Client, entry: UpstreamEntry, model: str, until_s: float) -> list[Probe]:
    if not model:
        reason = "not tested: it lists no model, and none was named"
        return [Probe(what=what, works=None, detail=reason) for what in STEPS]
    asking = Asking(client, entry, model, until_s)
    return [_tried(what, step, asking) for what, step in STEPS.items()]


def _paid(
    client: httpx2.Client,
    entry: UpstreamEntry,
    model: str,
    listed: Sequence[str] | None,
    until_s: float,
) -> list[Probe]:
    """``model``: the one to ask; empty: one of ``listed`` for each. ``listed``: ``None`` where none
    is to be asked."""
    found: list[Probe] = []
    for what, step in paid.STEPS.items():
        asked = "" if listed is None else model or paid.model_for(what, listed)
        if not asked:
            reason = paid.NOT_TRIED if listed is None else paid.NO_MODEL
            found.append(Probe(what=what, works=None, detail=reason))
        else:
            found.append(_tried(what, step, Asking(client, entry, asked, until_s)))
    return found


def _tried(what: str, step: Step, asking: Asking) -> Probe:
    if asking.left_s <= 0:
        return Probe(what=what, works=None, detail="not tested: the time is up")
    try:
        return Probe(what=what, works=True, detail=step(asking))
    except UpstreamUnavailableError as error:
        return Probe(what=what, works=False, detail=str(error))
