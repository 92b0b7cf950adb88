"""A model's card when several replicas hold it: only properties that hold for each of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fleet.catalogue import CatalogueEntry
from fleet.live.measurements import MeasuredLoad
from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from inference.gateway.consumers.models import model_card
from inference.protocol.heartbeat import Capability, DeviceInfo, ReplicaStatus
from inference.protocol.load_progress import LoadFailure, LoadProgress, LoadStage
from inference.wire.common.model_card import ModelCard, ModelPrices, own_fields
from tests.cases import each_case

ENTRY = CatalogueEntry(name="tiny", source="path:/models/tiny")


def shown(card: ModelCard) -> dict[str, Any]:
    return own_fields(card, card.id)


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
    assert [(place.node, place.status) for place in card.locations] == [
        ("a", "loaded"),
        ("b", "loaded"),
        ("c", "loading"),
    ]


def measured(context_tokens: int | None, *capabilities: str) -> MeasuredLoad:
    return MeasuredLoad(
        neuron="beast",
        device_kind="cpu",
        load_bytes=1,
        process_bytes=1,
        kv_token_bytes=1,
        memory_correction_bytes=0,
        prefill_speed=None,
        context_tokens=context_tokens,
        capabilities=None if context_tokens is None else capabilities,
    )


@each_case(
    ("loads", "settings", "context", "tool_call"),
    [
        ((), {}, None, None),
        ((), {"max_context_tokens": 64}, 64, None),
        ((measured(None),), {}, None, None),
        ((measured(1024, "chat", "tool_call"),), {}, 1024, True),
        ((measured(1024, "chat", "tool_call"), measured(512, "chat")), {}, 512, False),
        ((measured(1024, "chat"),), {"max_context_tokens": 64}, 64, False),
    ],
)
def test_what_is_known_of_a_model_that_is_not_loaded(
    loads: tuple[MeasuredLoad, ...], settings: Any, context: int | None, tool_call: bool | None
) -> None:
    entry = replace(ENTRY, measured_loads=loads, **settings)
    fields = shown(model_card(entry, FleetSnapshot(neurons=())))
    limit = fields["limit"]
    assert (limit and limit["context"], fields["tool_call"]) == (context, tool_call)
    assert (fields["status"], fields["loaded"]) == ("unloaded", False)


def test_the_catalogues_sampling_defaults_and_prices_are_shown() -> None:
    nowhere = FleetSnapshot(neurons=())
    assert model_card(ENTRY, nowhere).prices is None
    entry = replace(
        ENTRY,
        temperature=0.25,
        repetition_window=64,
        input_price_micro_usd=3,
        cached_input_price_micro_usd=1,
        output_price_micro_usd=5,
    )
    card = model_card(entry, nowhere)
    assert shown(card)["sampling_defaults"] == {"temperature": 0.25, "repetition_window": 64}
    assert card.prices == ModelPrices(
        input_micro_usd=3, cached_input_micro_usd=1, output_micro_usd=5
    )


@each_case(
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
    assert [place.node for place in card.locations] == list(names[: len(digests)])


def state(status: ReplicaStatus, **changes: Any) -> FleetSnapshot:
    (held,) = neuron("a", status=status).replicas
    view = replace(neuron("a"), replicas=(replace(held, **changes),))
    return FleetSnapshot(neurons=(view,))


BLINKED = FleetSnapshot(neurons=(), absent=(neuron("a"),))
BEGUN = LoadProgress(stage=LoadStage.WEIGHTS, done=1, total=3, unit="tensors")
WALRUS = LoadFailure(code="unknown_architecture", message="no such thing as a walrus")
PLACE = {"node": "a", "status": "loading", "vram_estimate_mb": None}


@each_case(
    ("snapshot", "fields"),
    [
        (
            state(ReplicaStatus.LOADING),
            {"status": "loading", "loaded": False, "locations": [PLACE]},
        ),
        (
            state(ReplicaStatus.LOADING, progress=BEGUN, status_age_s=10.0),
            {
                "progress": {
                    "stage": "weights",
                    "done": 1,
                    "total": 3,
                    "unit": "tensors",
                    "eta_s": 20.0,
                }
            },
        ),
        (
            state(ReplicaStatus.FAILED, failure=WALRUS),
            {
                "status": "failed",
                "status_reason": "a: no such thing as a walrus",
                "feasible_on": (),
            },
        ),
        (BLINKED, {"status": "recovering", "status_reason": "a has just fallen silent"}),
    ],
    ids=["before it is ready", "how far a load is", "it cannot be loaded", "its neuron blinks"],
)
def test_a_model_that_is_not_served(snapshot: FleetSnapshot, fields: dict[str, Any]) -> None:
    card = model_card(ENTRY, snapshot)
    own = shown(card)
    assert card.capabilities is None, "nothing is known before it is ready"
    assert {name: own[name] for name in fields} == fields


def test_it_is_feasible_where_it_could_go_once_others_have_left() -> None:
    card = DeviceInfo(
        index=0, kind="cuda", name="", total_memory_bytes=24 << 30, free_memory_bytes=0
    )
    full = NeuronView(name="full", epoch="e", version="0", devices=(card,), replicas=())
    snapshot = FleetSnapshot(neurons=(full,))
    assert model_card(replace(ENTRY, weight_bytes=9 << 30), snapshot).feasible_on == ("full",)
    assert model_card(replace(ENTRY, weight_bytes=99 << 30), snapshot).feasible_on == ()
