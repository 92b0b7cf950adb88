"""An upstream, and a gateway whose only model it serves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.conf import settings

from fleet.catalogue import CatalogueEntry
from fleet.upstreams import UpstreamEntry, seal
from tests.inference.gateway.conftest import Rig, parts_of
from tests.inference.gateway.upstreams.forwarding import HELLO, SECRET, UpstreamRig
from tests.servers.fake_upstream import FakeUpstream


@pytest.fixture(autouse=True)
def _nothing_comes_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes streams wait for their answer on a slow machine too: a stream that is started before
    has neither an error's status nor the header of who serves. Nor do probes come between."""
    monkeypatch.setattr("inference.gateway.consumers.generate.STREAM_GRACE_S", 60.0)
    monkeypatch.setattr("inference.gateway.upstreams.links.PROBE_AFTER_S", 3600.0)


@pytest.fixture
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as fake:
        fake.answer = lambda asked, wire: wire.stream(HELLO)
        yield fake


@pytest.fixture
def rig(rig: Rig, upstream: FakeUpstream) -> UpstreamRig:
    sealed = seal(SECRET, settings.SECRET_KEY)
    entry = CatalogueEntry(
        name="far",
        source="upstream:box/org/m",
        input_price_micro_usd=1_000_000,
        output_price_micro_usd=2_000_000,
        upstream=UpstreamEntry(name="box", url=upstream.url, sealed_secret=sealed),
    )
    rig.catalogue.listed = [entry]
    return UpstreamRig(**parts_of(rig), upstream=upstream, entry=entry)
