"""Hosts that belong to the fleet and take no loads now: a model that only they can hold comes back
with them."""

from __future__ import annotations

from typing import Any

from fleet.live.desired_state import Admission, DesiredState, DesiredStates, KnownDevice, KnownHost
from fleet.live.snapshot import FleetSnapshot
from fleet.placement import Load, place, place_on
from fleet.placement.returning import DRAIN_WAIT_S, MAX_RETURN_S, MIN_RETURN_S
from tests.cases import each_case
from tests.fleet.placement.fleets import GIB, entry, refused
from tests.fleet.placement.worlds import host_of, world

SMALL = "small 10/12"
CARD = KnownDevice(kind="cuda", total_memory_bytes=24 * GIB)
PROCESSOR = KnownDevice(kind="cpu", total_memory_bytes=128 * GIB)
REFUSED = Admission.REFUSED


def known(*devices: KnownDevice, **changes: Any) -> DesiredState:
    """The desired state of a host whose devices are on record, away for 70 s by default."""
    desired = {name: changes.pop(name) for name in ("drain", "admission") if name in changes}
    return DesiredState(**desired, host=KnownHost(devices=devices, **{"away_s": 70.0} | changes))


def away(there: str, **hosts: DesiredState) -> FleetSnapshot:
    return world(there, desired_states=DesiredStates(by_neuron=hosts))


def gone(*devices: KnownDevice, **changes: Any) -> FleetSnapshot:
    """The large host is silent."""
    return away(SMALL, big=known(*devices, **changes))


LARGE = entry(needs_gib=20)
ON_A_CARD = entry(needs_gib=20, device="cuda")
PAIR = entry(needs_gib=30, min_devices=2)
OF_SIZE = entry(needs_gib=2, min_device_vram_mb=20_000, device="cuda")
REFUSED_IT = "small 10 tiny,failed,code=exceeds_device"
FAILED_THERE = f"{SMALL}; big 24 tiny,failed,age=99,code=exceeds_device draining"


@each_case(
    ("what", "model", "snapshot"),
    [
        ("drains", LARGE, world(f"{SMALL}; big 24 draining")),
        ("stops", LARGE, world(f"{SMALL}; big 24 leaving")),
        ("is not ready", LARGE, world(f"{SMALL}; big 24 unready")),
        ("is of another version", LARGE, world(f"{SMALL}; big 24 other-protocol")),
        ("is silent", LARGE, gone(CARD)),
        ("and drained for long", LARGE, gone(CARD, drain=True, draining_s=DRAIN_WAIT_S)),
        ("all are silent", LARGE, away("", big=known(CARD))),
        ("of unknown size", entry(), away("", big=known(CARD))),
        ("several devices", PAIR, gone(CARD, CARD)),
        ("devices of a least size", OF_SIZE, gone(CARD)),
        ("pinned on", entry(needs_gib=2, pinned_on=("big",)), gone(CARD)),
        ("a small one has refused it", entry(), away(REFUSED_IT, big=known(CARD))),
        ("a processor", LARGE, away("small cpu3/4", big=known(PROCESSOR))),
    ],
)
def test_comes_back_with_its_host(what, model, snapshot: FleetSnapshot) -> None:
    decision = refused(place(model, snapshot))
    assert decision.code == "model_recovering", what
    assert "big" in decision.message
    assert decision.retry_after_s is not None
    assert MIN_RETURN_S <= decision.retry_after_s <= MAX_RETURN_S


@each_case(
    ("what", "model", "snapshot", "code"),
    [
        ("too large for all", entry(needs_gib=40, device="cuda"), gone(CARD), "exceeds_device"),
        ("not admitted", ON_A_CARD, gone(CARD, admission=REFUSED), "exceeds_device"),
        ("never reported", ON_A_CARD, away(SMALL, big=DesiredState()), "exceeds_device"),
        ("is no card", ON_A_CARD, gone(PROCESSOR), "exceeds_device"),
        (
            "is not where it may run",
            entry(needs_gib=20, device="cuda", pinned_on=("small",)),
            gone(CARD),
            "exceeds_device",
        ),
        (
            "has room but for the moment",
            entry(needs_gib=11, device="cuda"),
            gone(CARD),
            "not_enough_memory",
        ),
        (
            "the large one has refused it",
            ON_A_CARD,
            world(FAILED_THERE),
            "exceeds_device",
        ),
    ],
)
def test_no_host_of_the_fleet_holds_it(what, model, snapshot, code: str) -> None:
    assert refused(place(model, snapshot)).code == code, what


OUT = known(CARD, admission=REFUSED)


@each_case(
    ("model", "snapshot", "hosts"),
    [
        (entry(pinned_on=("big",)), away(SMALL, big=OUT), "big"),
        (entry(), away("", big=OUT), "big"),
        (LARGE, away("", big=OUT, other=OUT), "big, other"),
    ],
    ids=["where it is pinned", "the only host of the fleet", "all"],
)
def test_a_host_that_was_revoked_is_not_waited_for(model, snapshot, hosts: str) -> None:
    decision = refused(place(model, snapshot))
    assert (decision.code, decision.retry_after_s) == ("no_neuron", None)
    assert f"tiny can run on {hosts} only, which was refused or revoked" in decision.message


def test_whoever_has_room_meanwhile_loads_it() -> None:
    decision = place(LARGE, away(f"{SMALL}; other 22", big=known(CARD)))
    assert decision == Load(neuron="other", model="tiny", devices=("cuda:0",))


@each_case(
    ("away_s", "retry_after_s"),
    [(None, MIN_RETURN_S), (1.0, MIN_RETURN_S), (70.0, 70.0), (86_400.0, MAX_RETURN_S)],
)
def test_it_is_expected_to_be_away_for_as_long_again(
    away_s: float | None, retry_after_s: float
) -> None:
    assert refused(place(LARGE, gone(CARD, away_s=away_s))).retry_after_s == retry_after_s


def test_of_several_the_first_to_return_counts() -> None:
    hosts = {"long": known(CARD, away_s=200.0), "soon": known(CARD, away_s=20.0)}
    decision = refused(place(LARGE, away(SMALL, **hosts)))
    assert decision.retry_after_s == 20.0
    assert "soon" in decision.message


def test_a_load_on_one_host_is_not_about_others() -> None:
    small = host_of(SMALL)
    assert refused(place_on(ON_A_CARD, small, gone(CARD))).code == "exceeds_device"
    decision = refused(place_on(entry(min_devices=2), small, away(f"{SMALL}; two 9 9")))
    wanted = "tiny needs 2 cards of one host, and no host has so many: small has 1"
    assert (decision.code, decision.message) == ("exceeds_device", wanted)
    assert decision.retry_after_s is None
