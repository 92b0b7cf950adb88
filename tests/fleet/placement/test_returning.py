"""Hosts that belong to the fleet and take no loads now: a model that only they can hold comes back
with them."""

from __future__ import annotations

from typing import Any

from fleet.catalogue import CatalogueEntry
from fleet.live.desired_state import Admission, DesiredState, DesiredStates, KnownDevice, KnownHost
from fleet.live.snapshot import FleetSnapshot, NeuronView
from fleet.placement import Load, place, place_on
from fleet.placement.returning import DRAIN_WAIT_S, MAX_RETURN_S, MIN_RETURN_S
from inference.protocol.load_progress import LoadFailure
from tests.cases import each_case
from tests.fleet.placement.fleets import (
    FAILED,
    GIB,
    card,
    entry,
    fleet,
    neuron,
    processor,
    refused,
    replica,
)

LARGE = entry(needs_gib=20)
SMALL_HOST = neuron("small", card(free=10, total=12))
BIG_CARD = KnownDevice(kind="cuda", total_memory_bytes=24 * GIB)


def known(*devices: KnownDevice, **changes: Any) -> DesiredState:
    """The desired state of a host whose devices are on record."""
    desired = {name: changes.pop(name) for name in ("drain", "admission") if name in changes}
    return DesiredState(**desired, host=KnownHost(devices=devices, **changes))


def away(*live: NeuronView, **hosts: DesiredState) -> FleetSnapshot:
    return fleet(*live, desired_states=DesiredStates(by_neuron=hosts))


def big(**changes: Any) -> NeuronView:
    return neuron("big", card(free=24), **changes)


RETURNING: dict[str, tuple[CatalogueEntry, FleetSnapshot]] = {
    "drains": (LARGE, fleet(SMALL_HOST, big(is_draining=True))),
    "stops": (LARGE, fleet(SMALL_HOST, big(is_draining=True, is_leaving=True))),
    "is not ready": (LARGE, fleet(SMALL_HOST, big(is_ready=False))),
    "is of another version": (LARGE, fleet(SMALL_HOST, big(speaks_our_protocol=False))),
    "is silent": (LARGE, away(SMALL_HOST, big=known(BIG_CARD, away_s=70.0))),
    "is silent and has been drained for long": (
        LARGE,
        away(SMALL_HOST, big=known(BIG_CARD, drain=True, draining_s=DRAIN_WAIT_S)),
    ),
    "all are silent": (LARGE, away(big=known(BIG_CARD, away_s=70.0))),
    "of unknown size": (entry(), away(big=known(BIG_CARD, away_s=70.0))),
    "several devices": (
        entry(needs_gib=30, min_devices=2),
        away(SMALL_HOST, big=known(BIG_CARD, BIG_CARD, away_s=70.0)),
    ),
    "devices of a least size": (
        entry(needs_gib=2, min_device_vram_mb=20_000, device="cuda"),
        away(SMALL_HOST, big=known(BIG_CARD, away_s=70.0)),
    ),
    "pinned on": (
        entry(needs_gib=2, pinned_on=("big",)),
        away(SMALL_HOST, big=known(BIG_CARD, away_s=70.0)),
    ),
    "a small one has refused it": (
        entry(),
        away(
            neuron("small", card(free=10), holds=(replica(
                "tiny", FAILED, on="small",
                failure=LoadFailure(code="exceeds_device", message="too large"),
            ),)),
            big=known(BIG_CARD, away_s=70.0),
        ),
    ),
}  # fmt: skip


@each_case(("model", "snapshot"), RETURNING.values(), ids=RETURNING.keys())
def test_comes_back_with_its_host(model: CatalogueEntry, snapshot: FleetSnapshot) -> None:
    decision = refused(place(model, snapshot))
    assert decision.code == "model_recovering"
    assert "big" in decision.message
    assert decision.retry_after_s is not None
    assert MIN_RETURN_S <= decision.retry_after_s <= MAX_RETURN_S


NEVER: dict[str, tuple[CatalogueEntry, FleetSnapshot, str]] = {
    "too large for all": (
        entry(needs_gib=40, device="cuda"),
        away(SMALL_HOST, big=known(BIG_CARD)),
        "exceeds_device",
    ),
    "admitted nowhere": (
        entry(needs_gib=20, device="cuda"),
        away(SMALL_HOST, big=known(BIG_CARD, admission=Admission.REFUSED)),
        "exceeds_device",
    ),
    "has never reported": (
        entry(needs_gib=20, device="cuda"),
        away(SMALL_HOST, big=DesiredState()),
        "exceeds_device",
    ),
    "is no card": (
        entry(needs_gib=20, device="cuda"),
        away(SMALL_HOST, big=known(KnownDevice(kind="cpu", total_memory_bytes=90 * GIB))),
        "exceeds_device",
    ),
    "is not where it may run": (
        entry(needs_gib=20, device="cuda", pinned_on=("small",)),
        away(SMALL_HOST, big=known(BIG_CARD)),
        "exceeds_device",
    ),
    "has room but for the moment": (
        entry(needs_gib=11, device="cuda"),
        away(SMALL_HOST, big=known(BIG_CARD)),
        "not_enough_memory",
    ),
    "the large one has refused it": (
        entry(needs_gib=20, device="cuda"),
        fleet(SMALL_HOST, big(is_draining=True, holds=(replica(
            "tiny", FAILED, on="big", status_age_s=99.0,
            failure=LoadFailure(code="exceeds_device", message="too large"),
        ),))),
        "exceeds_device",
    ),
}  # fmt: skip


@each_case(("model", "snapshot", "code"), NEVER.values(), ids=NEVER.keys())
def test_no_host_of_the_fleet_holds_it(
    model: CatalogueEntry, snapshot: FleetSnapshot, code: str
) -> None:
    assert refused(place(model, snapshot)).code == code


OUT = known(BIG_CARD, away_s=70.0, admission=Admission.REFUSED)
REVOKED = {
    "where it is pinned": (entry(pinned_on=("big",)), away(SMALL_HOST, big=OUT), "big"),
    "the only host of the fleet": (entry(), away(big=OUT), "big"),
    "all": (LARGE, away(big=OUT, other=OUT), "big, other"),
}


@each_case(("model", "snapshot", "hosts"), REVOKED.values(), ids=REVOKED.keys())
def test_a_host_that_was_revoked_is_not_waited_for(
    model: CatalogueEntry, snapshot: FleetSnapshot, hosts: str
) -> None:
    decision = refused(place(model, snapshot))
    assert (decision.code, decision.retry_after_s) == ("no_neuron", None)
    assert f"tiny can run on {hosts} only, which was refused or revoked" in decision.message


def test_whoever_has_room_meanwhile_loads_it() -> None:
    other = neuron("other", card(free=22))
    decision = place(LARGE, away(SMALL_HOST, other, big=known(BIG_CARD, away_s=70.0)))
    assert decision == Load(neuron="other", model="tiny", devices=("cuda:0",))


@each_case(
    ("away_s", "retry_after_s"),
    [(None, MIN_RETURN_S), (1.0, MIN_RETURN_S), (70.0, 70.0), (86_400.0, MAX_RETURN_S)],
)
def test_it_is_expected_to_be_away_for_as_long_again(
    away_s: float | None, retry_after_s: float
) -> None:
    decision = refused(place(LARGE, away(SMALL_HOST, big=known(BIG_CARD, away_s=away_s))))
    assert decision.retry_after_s == retry_after_s


def test_of_several_the_first_to_return_counts() -> None:
    hosts = {"long": known(BIG_CARD, away_s=200.0), "soon": known(BIG_CARD, away_s=20.0)}
    decision = refused(place(LARGE, away(SMALL_HOST, **hosts)))
    assert decision.retry_after_s == 20.0
    assert "soon" in decision.message


def test_a_load_on_one_host_is_not_about_others() -> None:
    snapshot = away(SMALL_HOST, big=known(BIG_CARD, away_s=70.0))
    decision = refused(place_on(entry(needs_gib=20, device="cuda"), SMALL_HOST, snapshot))
    assert decision.code == "exceeds_device"


def test_a_load_on_a_host_with_too_few_devices_is_refused_by_its_own() -> None:
    two = neuron("two", card(free=9), card(1, free=9))
    decision = refused(place_on(entry(min_devices=2), SMALL_HOST, away(SMALL_HOST, two)))
    assert (decision.code, decision.retry_after_s) == ("exceeds_device", None)
    wanted = "tiny needs 2 cards of one host, and no host has so many: small has 1"
    assert decision.message == wanted


def test_a_processor_that_is_away_counts() -> None:
    box = KnownDevice(kind="cpu", total_memory_bytes=128 * GIB)
    snapshot = away(neuron("tiny", processor(free=3, total=4)), box=known(box, away_s=70.0))
    assert refused(place(entry(needs_gib=20), snapshot)).code == "model_recovering"
