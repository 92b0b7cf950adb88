"""Two upstreams, of which one is outside, and a model with targets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fleet.catalogue import CatalogueEntry
from fleet.upstreams.entry import UpstreamEntry
from tests.inference.gateway.conftest import ENTRY, FakeCatalogue
from tests.inference.gateway.upstreams.targets.targeting import (
    answers,
)
from tests.servers.fake_upstream import FakeUpstream


@pytest.fixture
def box() -> Iterator[FakeUpstream]:
    with FakeUpstream() as fake:
        fake.answer = answers
        yield fake


@pytest.fixture
def cloud() -> Iterator[FakeUpstream]:
    with FakeUpstream() as fake:
        fake.answer = answers
        yield fake


@pytest.fixture
def offer(catalogue: FakeCatalogue, box: FakeUpstream, cloud: FakeUpstream) -> Any:
    """Sets the targets of the catalogue's only model; other changes of its entry by name."""

    def offered(*targets: str, **changes: Any) -> CatalogueEntry:
        upstreams = (
            UpstreamEntry(name="box", url=box.url),
            UpstreamEntry(name="cloud", url=cloud.url, leaves_network=True),
        )
        values: dict[str, Any] = {"may_leave_network": True, "target_upstreams": upstreams}
        entry = replace(ENTRY, targets=targets, **values | changes)
        catalogue.listed = [entry]
        return entry

    return offered
