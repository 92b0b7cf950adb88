"""The simulated fleet is the same for the same seed; no card ever holds more than it has."""

from __future__ import annotations

import pytest

from benchmarks.fleet_simulation.belady import belady
from benchmarks.fleet_simulation.policies import Helexa, PlainLru
from benchmarks.fleet_simulation.scenario import Scenario, Size, make_scenario
from benchmarks.fleet_simulation.simulator import GIVE_UP_S, Result, Simulator
from benchmarks.fleet_simulation.state import SimFleet, SimReplica

SMALL = Size(
    num_neurons=4, cards_a_neuron=3, num_models=14, requests_a_s=1.0, duration_s=300.0,
    card_deaths_an_hour=30.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return make_scenario(SMALL, seed=3)


def run(scenario: Scenario, policy) -> Result:
    return Simulator(scenario, policy).run()


@pytest.mark.parametrize("make", [Helexa, PlainLru])
def test_a_run_is_the_same_again_and_overfills_no_card(scenario, make, monkeypatch) -> None:
    add = SimFleet.add

    def checked(fleet: SimFleet, replica: SimReplica) -> None:
        add(fleet, replica)
        assert all(fleet.free_bytes(replica.neuron, card) >= 0 for card in replica.cards)
        assert len(replica.cards) == replica.model.num_devices

    monkeypatch.setattr(SimFleet, "add", checked)
    result, again = run(scenario, make(scenario)), run(scenario, make(scenario))
    assert result == again
    assert result.num_loads > 0
    assert result.num_requests == len(scenario.arrivals)
    assert max(result.waits_s) <= GIVE_UP_S


def test_nobody_is_better_than_who_knows_the_future(scenario) -> None:
    best = belady(scenario)
    ours = run(scenario, Helexa(scenario))
    assert ours.num_hits / ours.num_requests <= best.hit_share
