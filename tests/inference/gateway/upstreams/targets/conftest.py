"""A gateway whose only model has several targets: own replicas, and two upstreams, of which one is
outside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from fleet.catalogue import CatalogueEntry
from fleet.upstreams import UpstreamEntry
from tests.inference.gateway.asgi_client import Exchange
from tests.inference.gateway.conftest import ENTRY, Rig, parts_of
from tests.inference.gateway.fake_metering import KEY
from tests.inference.gateway.upstreams.forwarding import PATH
from tests.inference.gateway.upstreams.passing import SPEECH, SPOKEN
from tests.servers.fake_upstream import Asked, FakeUpstream, Wire, chunk, usage

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
OWN, FAR = "The capital is Paris.", "Hello"
PARTS = [chunk({"content": FAR}), chunk(finish="stop"), usage(7, 2)]
AUTHORIZED = {"authorization": f"Bearer {KEY}"}
BOX: dict[str, Any] = {"source": "upstream:box/m"}
SPEAKS: dict[str, Any] = {**BOX, "task": "speech"}


@pytest.fixture
def rig(rig: Rig) -> Iterator[TargetsRig]:
    with FakeUpstream() as box, FakeUpstream() as cloud:
        box.answer = cloud.answer = answers
        rig.catalogue.listed = [ENTRY]
        yield TargetsRig(**parts_of(rig), box=box, cloud=cloud)


@dataclass(slots=True, kw_only=True)
class TargetsRig(Rig):
    """The upstream ``cloud`` is outside, ``box`` is not."""

    box: FakeUpstream
    cloud: FakeUpstream

    def upstreams(self, **changes: Any) -> tuple[UpstreamEntry, ...]:
        return (
            UpstreamEntry(name="box", url=self.box.url, **changes),
            UpstreamEntry(name="cloud", url=self.cloud.url, leaves_network=True),
        )

    def offer(self, *targets: str, **changes: Any) -> CatalogueEntry:
        """Sets the targets of the catalogue's only model; other changes of its entry by name."""
        values = {"may_leave_network": True, "target_upstreams": self.upstreams()}
        entry = replace(ENTRY, targets=targets, **values | changes)
        self.catalogue.listed = [entry]
        return entry

    def forget(self) -> None:
        """Nothing was asked and nothing settled, for the next case of a table."""
        self.ledger.settled.clear()
        for upstream in (self.box, self.cloud):
            upstream.asked.clear()

    async def chat(self, **fields: Any) -> Exchange:
        return await self.client.post(PATH, {**CHAT, **fields})

    def open_chat(self, **fields: Any) -> Exchange:
        return self.client.open("POST", PATH, {**CHAT, **fields})

    async def speak(self) -> Exchange:
        return await self.client.post(SPEECH, {**SPOKEN, "model": "tiny"})

    async def served_by(self, **fields: Any) -> str:
        answer = await self.chat(**fields)
        assert answer.status == 200, answer.body
        return answer.headers["x-helexa-served-by"]


def answers(asked: Asked, wire: Wire) -> None:
    if asked.path == SPEECH:
        wire.whole(200, b"sound", "audio/mpeg")
    else:
        wire.stream(PARTS)


def refuses(status: int, **headers: str) -> Any:
    return lambda asked, wire: wire.json(status, {"error": {"message": "no"}}, **headers)
