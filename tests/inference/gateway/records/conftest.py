"""A gateway that wants a key, over what it passes on to be recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest_asyncio

from helexa_site.config import Config
from helexa_site.routing import build_application
from inference.gateway.gateway import Gateway
from inference.gateway.request.outcome import RequestOutcome
from metering.ledger.entries import Outcome
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import FakeCatalogue, Rig, not_django
from tests.inference.gateway.fake_metering import FakeDirectory, FakeLedger


@pytest_asyncio.fixture
async def rig(
    config: Config, catalogue: FakeCatalogue, directory: FakeDirectory, ledger: FakeLedger
) -> AsyncIterator[RecordingRig]:
    records = Records()
    gateway = Gateway(
        replace(config, allow_anonymous=False),
        catalogue,
        directory=directory,
        make_ledger=lambda _id: ledger,
        records=records,
    )
    yield RecordingRig(
        client=AsgiClient(build_application(gateway, django_app=not_django)),
        gateway=gateway,
        catalogue=catalogue,
        directory=directory,
        ledger=ledger,
        records=records,
    )
    await gateway.drain(0)
    gateway.close()
    assert records.has_stopped


class Records:
    """What the gateway passes on to be recorded."""

    def __init__(self) -> None:
        self.ended: list[RequestOutcome] = []
        self.has_stopped = False
        self.depth = 3
        self.num_dropped = 0

    def start(self) -> None:
        pass

    def stop(self, timeout_s: float) -> None:
        self.has_stopped = True

    def add(self, ended: RequestOutcome) -> None:
        assert not self.has_stopped, "it is never written"
        self.ended.append(ended)

    def only(self) -> RequestOutcome:
        (one,) = self.ended
        return one


@dataclass(slots=True, kw_only=True)
class RecordingRig(Rig):
    records: Records

    def record(self) -> RequestOutcome:
        """The only record since the last one that was read."""
        one = self.records.only()
        self.records.ended.clear()
        return one

    def refused(self, status: int, code: str, *, account: str = "lab") -> RequestOutcome:
        """Asserts that the only record is of that refusal."""
        one = self.record()
        assert (one.kind, one.status, one.settle.outcome) == (Outcome.REFUSED, status, code)
        assert (one.settle.account, bool(one.settle.key)) == (account, bool(account))
        assert one.error_message
        return one
