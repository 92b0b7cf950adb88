"""A gateway that wants a key, over what it passes on to be recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest_asyncio

from helexa_site.config import Config
from helexa_site.routing import build_application
from inference.gateway.gateway import Gateway
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import FakeCatalogue, not_django
from tests.inference.gateway.fake_metering import FakeDirectory, FakeLedger
from tests.inference.gateway.records.recorded import RecordingRig, Records


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
