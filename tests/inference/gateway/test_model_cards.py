"""What a card says when several replicas hold a model: only what holds for each of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.catalogue import CatalogueEntry
from fleet.snapshot import FleetSnapshot, NeuronView, ReplicaView
from inference.gateway.models import model_card
from inference.protocol.heartbeat import Capability, ReplicaStatus
from inference.wire.model_card import ModelPrices

ENTRY = CatalogueEntry(name="tiny", source="path:/models/tiny")


def neuron(
    name: str,
    *capabilities: Capability,
    status: ReplicaStatus = ReplicaStatus.READY,
    digest: str = "",
) -> NeuronView:
    replica = ReplicaView(
        neuron=name,
        model="tiny",
        job_id="job",
        status=status,
        status_age_s=1.0,
        capabilities=capabilities,
        spec_digest=digest,
    )
    return NeuronView(name=name, epoch="e", version="0", devices=(), replicas=(replica,))


def test_what_every_ready_replica_can_do() -> None:
    snapshot = FleetSnapshot(
        neurons=(
            neuron("a", "chat", "tool_call", "reasoning"),
            neuron("b", "chat", "reasoning"),
            neuron("c", status=ReplicaStatus.LOADING),
        )
    )
    card = model_card(ENTRY, snapshot)
    assert card.capabilities == ("chat", "reasoning")
    assert card.locations == ("a", "b")


def test_prices_are_the_catalogues() -> None:
    assert model_card(ENTRY, FleetSnapshot(neurons=())).prices is None
    priced = replace(
        ENTRY,
        input_price_micro_usd=3,
        cached_input_price_micro_usd=1,
        output_price_micro_usd=5,
    )
    card = model_card(priced, FleetSnapshot(neurons=()))
    assert card.prices == ModelPrices(
        input_micro_usd=3, cached_input_micro_usd=1, output_micro_usd=5
    )


@pytest.mark.parametrize(
    ("digests", "status"),
    [
        (["old"], "outdated"),
        (["old", "older"], "outdated"),
        (["old", ENTRY.spec_digest()], "ready"),
        ([""], "ready"),
    ],
)
def test_a_model_is_outdated_where_all_that_is_ready_is(digests: list[str], status: str) -> None:
    names = "abc"
    snapshot = FleetSnapshot(
        neurons=tuple(
            neuron(name, digest=digest) for name, digest in zip(names, digests, strict=False)
        )
    )
    card = model_card(ENTRY, snapshot)
    assert card.status == status
    assert card.locations == tuple(names[: len(digests)])


def test_nothing_is_known_before_one_is_ready() -> None:
    card = model_card(ENTRY, FleetSnapshot(neurons=(neuron("a", status=ReplicaStatus.LOADING),)))
    assert card.capabilities is None and card.status == "loading"
