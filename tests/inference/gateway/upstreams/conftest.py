"""An upstream, and a gateway whose only model it serves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from django.conf import settings

from fleet.catalogue import CatalogueEntry
from fleet.upstreams import UpstreamEntry, seal
from tests.inference.gateway.asgi_client import Exchange
from tests.inference.gateway.conftest import ENTRY, Rig, parts_of
from tests.inference.gateway.upstreams.forwarding import CHAT as OF_FAR
from tests.inference.gateway.upstreams.forwarding import HELLO, SECRET, SPEECH, UpstreamRig
from tests.servers.fake_upstream import Answer, Asked, FakeUpstream, Wire, chunk, usage

CHAT = {**OF_FAR, "model": "tiny"}
OWN, FAR = "The capital is Paris.", "Hello"
PARTS = [chunk({"content": FAR}), chunk(finish="stop"), usage(7, 2)]
BOX: dict[str, Any] = {"source": "upstream:box/m"}
SPEAKS: dict[str, Any] = {**BOX, "task": "speech"}


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


@dataclass(slots=True, kw_only=True)
class TargetsRig(UpstreamRig):
    """The upstream ``cloud`` is outside, ``box`` is not."""

    cloud: FakeUpstream

    @property
    def box(self) -> FakeUpstream:
        return self.upstream

    def upstreams(self, **changes: Any) -> tuple[UpstreamEntry, ...]:
        return (
            UpstreamEntry(name="box", url=self.box.url, **changes),
            UpstreamEntry(name="cloud", url=self.cloud.url, leaves_network=True),
        )

    def target(self, *targets: str, **changes: Any) -> CatalogueEntry:
        """Sets the targets of the catalogue's only model; other changes of its entry by name."""
        values = {"may_leave_network": True, "target_upstreams": self.upstreams()}
        entry = replace(ENTRY, targets=targets, **values | changes)
        self.catalogue.listed = [entry]
        return entry

    def forget(self) -> None:
        UpstreamRig.forget(self)
        self.cloud.asked.clear()

    async def ask_for(self, kind: dict[str, Any]) -> Exchange:
        return await (self.chat(stream=True) if kind is BOX else self.speak())

    async def served_by(self, **fields: Any) -> str:
        answer = await self.chat(**fields)
        assert answer.status == 200, answer.body
        return answer.headers["x-helexa-served-by"]


@pytest.fixture
def targets(rig: UpstreamRig) -> Iterator[TargetsRig]:
    with FakeUpstream() as cloud:
        rig.upstream.answer = cloud.answer = answers
        rig.catalogue.listed = [ENTRY]
        yield TargetsRig(**parts_of(rig) | {"model": "tiny", "cloud": cloud})


def answers(asked: Asked, wire: Wire) -> None:
    if asked.path == SPEECH:
        wire.whole(200, b"sound", "audio/mpeg")
    else:
        wire.stream(PARTS)


def refuses(status: int, **headers: str) -> Answer:
    return lambda asked, wire: wire.json(status, {"error": {"message": "no"}}, **headers)
