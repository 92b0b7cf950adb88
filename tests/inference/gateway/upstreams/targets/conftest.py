"""Two upstreams, of which one is outside, and a model with targets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.inference.gateway.conftest import ENTRY, Rig, parts_of
from tests.inference.gateway.upstreams.targets.targeting import TargetsRig, answers
from tests.servers.fake_upstream import FakeUpstream


@pytest.fixture
def rig(rig: Rig) -> Iterator[TargetsRig]:
    with FakeUpstream() as box, FakeUpstream() as cloud:
        box.answer = cloud.answer = answers
        rig.catalogue.listed = [ENTRY]
        yield TargetsRig(**parts_of(rig), box=box, cloud=cloud)
