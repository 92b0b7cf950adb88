"""A fleet under load and under harm: every request ends once, no card is ever overcommitted, and
the fleet settles. On PostgreSQL with two gateways and two controls; the other files' fleets are on
SQLite with one of each.

The tests share a fleet and leave it whole: each harms it and sees it recover.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from inference.protocol.heartbeat import ReplicaStatus
from tests.live.fleets.crowd import Crowd, ending_of
from tests.live.fleets.fleet import GB, Fleet, running_fleet
from tests.servers.private_postgres import running_postgres

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.limit_s(900)]

QUESTION = "count for me"
TEXT = "".join(f"{number} " for number in range(40))
TOKEN_S = 0.01
SIZES = {
    "amber": 10 * GB,
    "birch": 18 * GB,
    "cedar": 9 * GB,
    "dune": 9 * GB,
    "elm": 11 * GB,
    "fern": 10 * GB,
    "gorse": 9 * GB,
}
"""The models' sizes, together more than fits: birch needs a card of beast's to itself, and the
pinned model is on another."""
CARDS = {"beast": (20 * GB, 20 * GB), "mouse": (12 * GB,), "guest": (10 * GB,)}
PINNED = "cedar"
SETTLED = (ReplicaStatus.READY, ReplicaStatus.FAILED)
ENDINGS_OF_A_KILLED_NEURON = (
    "neuron_lost",
    "no_neuron",
    "model_recovering",
    "request_broke_worker",
)
"""The codes of requests whose neuron was killed. Its workers are killed with it, and its next life
may find that one of them was preparing a request."""


@pytest.fixture(scope="module")
def shared_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    run_dir = tmp_path_factory.mktemp("fleet")
    with running_postgres() as url, running_fleet(run_dir, url) as fleet:
        line = fleet.invite("guest", f"127.0.0.1:{fleet.redis_port}")
        for _ in range(2):
            fleet.add_control()
            fleet.add_gateway()
        for name, cards in CARDS.items():
            fleet.add_neuron(name, *cards, join=line if name == "guest" else "")
        for model in fleet.add_models(SIZES, pinned=PINNED):
            model.answers(QUESTION, TEXT, token_s=TOKEN_S)
        yield fleet
        assert not any(one.overcommitted() for one in fleet.cards.values()), fleet.describe()


@pytest.fixture
def fleet(shared_fleet: Fleet) -> Iterator[Fleet]:
    settled(shared_fleet)
    yield shared_fleet
    settled(shared_fleet)


def settled(fleet: Fleet) -> None:
    """All gateways and neurons are there, the pinned model is loaded once, and nothing is open or
    half done. A load that failed is reported until it is tried again."""

    def is_settled() -> bool:
        snapshot = fleet.snapshot()
        return (
            all(httpx.get(f"{url}/health", timeout=30.0).content for url in fleet.gateway_urls)
            and len(snapshot.neurons) == len(CARDS)
            and len(fleet.ready(PINNED)) == 1
            and all(one.status in SETTLED and one.is_idle for one in snapshot.replicas())
        )

    fleet.wait(is_settled, "the fleet has settled")


def asking(fleet: Fleet, *models: str) -> Crowd:
    return Crowd(fleet.gateway_urls, models, QUESTION, TEXT)


def wait_for(fleet: Fleet, clients: Crowd, num_more: int) -> None:
    before = clients.num_whole()
    fleet.wait(lambda: clients.num_whole() >= before + num_more, "answers come")


def ended_once(fleet: Fleet, clients: Crowd, *allowed: str) -> None:
    assert all(one.num_endings == (one.how != "connection") for one in clients.endings)
    counted = clients.counted()
    assert set(counted) <= {"whole", *allowed}, f"{counted}\n{fleet.describe()}"


def test_a_cold_model_is_loaded_on_a_card_that_holds_it_and_others_have_time_slices(
    fleet: Fleet,
) -> None:
    ending = ending_of(fleet.gateway_urls[0], "birch", QUESTION, TEXT, stream=True)
    assert ending.how == "whole", fleet.describe()
    places = []
    for model in ("birch", PINNED):  # while its neuron's heartbeat is late, none is reported
        (replica,) = fleet.wait(lambda m=model: fleet.snapshot().replicas_of(m), "it is reported")
        places.append((replica.neuron, replica.devices))
    assert places[0][0] == "beast" and places[0] != places[1]
    with asking(fleet, *SIZES) as clients:
        fleet.wait(
            lambda: len({one.model for one in clients.endings}) == len(SIZES), "each is answered"
        )
        wait_for(fleet, clients, 40)
    ended_once(fleet, clients)


def test_a_killed_gateway_takes_only_its_own_requests_along(fleet: Fleet) -> None:
    with asking(fleet, PINNED) as clients:
        wait_for(fleet, clients, 3)
        fleet.programs["gateway-0"].kill()
        wait_for(fleet, clients, 5)
        fleet.programs["gateway-0"].start()
        wait_for(fleet, clients, 5)
    ended_once(fleet, clients, "connection")
    lost = {one.gateway_url for one in clients.endings if one.how == "connection"}
    assert lost <= {fleet.gateway_urls[0]}


def test_a_killed_control_is_followed_by_another_and_a_killed_neurons_model_comes_back(
    fleet: Fleet,
) -> None:
    """What shows that one leads: the pinned model, which went with its neuron, is loaded."""
    (home,) = fleet.wait(lambda: fleet.ready(PINNED), "the pinned model is reported")
    with asking(fleet, PINNED) as clients:
        wait_for(fleet, clients, 3)
        fleet.programs["control-0"].kill()
        fleet.programs[home].kill()
        fleet.wait(lambda: home not in fleet.ready(PINNED), "its neuron is gone")
        fleet.wait(lambda: fleet.ready(PINNED), "it is loaded elsewhere")
        wait_for(fleet, clients, 10)
        fleet.programs["control-0"].start()
        fleet.programs[home].start()
        fleet.wait(lambda: len(fleet.snapshot().neurons) == len(CARDS), "it is back")
    ended_once(fleet, clients, *ENDINGS_OF_A_KILLED_NEURON)


def test_a_killed_redis_ends_what_is_open_and_all_find_its_next_life(fleet: Fleet) -> None:
    with asking(fleet, PINNED) as clients:
        wait_for(fleet, clients, 3)
        fleet.redis.kill()
        fleet.redis.start()
        wait_for(fleet, clients, 10)
    ended_once(fleet, clients, "redis_unavailable", "neuron_lost", "no_neuron", "model_loading")


def test_a_model_moves_without_a_gap_and_comes_back_after_a_drain(fleet: Fleet) -> None:
    """Its neuron is upgraded meanwhile."""
    with asking(fleet, PINNED) as clients:
        for name in ("mouse", "guest"):
            fleet.manage("models", "change", PINNED, "--set", f"pinned_on={name}")
            fleet.wait(lambda name=name: fleet.ready(PINNED) == [name], f"it is on {name}")
        fleet.manage("neurons", "drain", "guest")
        fleet.manage("models", "change", PINNED, "--set", "pinned_on=")
        fleet.wait(lambda: fleet.ready(PINNED) not in ([], ["guest"]), "another one has it")
        fleet.wait(lambda: "guest" not in fleet.ready(PINNED), "it has left")
        fleet.programs["guest"].end()
        fleet.programs["guest"].start()
        fleet.wait(lambda: len(fleet.snapshot().neurons) == len(CARDS), "it is upgraded")
        fleet.manage("neurons", "resume", "guest")
    assert set(clients.counted()) == {"whole"}, clients.counted()
