"""A fleet that is idle, so that batches run."""

from __future__ import annotations

import pytest_asyncio

from tests.inference.gateway.fake_neuron import FakeNeuron


@pytest_asyncio.fixture
async def idle_neuron(neuron: FakeNeuron) -> None:
    neuron.queue_depth = 0
    await neuron.beat()
