"""A fleet under load and under harm: every request ends once, no card is ever overcommitted, and
the fleet settles. On PostgreSQL with two gateways and two controls; the other files' fleets are on
SQLite with one of each.

The tests share a fleet and leave it whole: each harms it and sees it recover.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from benchmarks.ports import free_port
from fleet.live.snapshot import ReplicaView
from inference.protocol.heartbeat import ReplicaStatus
from tests.live.fleets.crowd import Crowd, crowd, ending_of
from tests.live.fleets.fleet import GB, Fleet
from tests.live.scripted.simulated_devices import CardWatch
from tests.servers.private_postgres import running_postgres
from tests.servers.private_redis import MortalRedis, mortal_redis

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


class Harmed:
    def __init__(self, fleet: Fleet, redis: MortalRedis) -> None:
        self.fleet = fleet
        self.redis = redis


@pytest.fixture(scope="module")
def harmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harmed]:
    run_dir = tmp_path_factory.mktemp("fleet")
    port = free_port()
    with mortal_redis(run_dir / "redis", port=port) as redis, running_postgres() as url:
        fleet = Fleet(run_dir, database_url=url, redis_url=redis.url_at(port))
        try:
            start(fleet, port)
            with CardWatch(fleet.cards) as watch:
                yield Harmed(fleet, redis)
            assert watch.num_looks > 0
            assert watch.overcommitted == [], fleet.describe()
        finally:
            fleet.end()


def start(fleet: Fleet, redis_port: int) -> None:
    line = fleet.invite("guest", f"127.0.0.1:{redis_port}")
    for _ in range(2):
        fleet.add_control()
        fleet.add_gateway()
    for name, cards in CARDS.items():
        joins = ("--join", line) if name == "guest" else None
        fleet.add_neuron(name, *cards, arguments=joins)
    for model in fleet.add_models(SIZES, pinned=PINNED):
        model.answers(QUESTION, TEXT, token_s=TOKEN_S)
    fleet.wait(lambda: len(fleet.snapshot().neurons) == len(CARDS), "all neurons are there")
    fleet.wait(lambda: fleet.ready(PINNED), "the pinned model is loaded")


@pytest.fixture
def fleet(harmed: Harmed) -> Iterator[Fleet]:
    settled(harmed.fleet)
    yield harmed.fleet
    settled(harmed.fleet)


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


def reported(fleet: Fleet, model: str) -> ReplicaView:
    """The one replica of a loaded model. Waits while its neuron's heartbeat is late."""
    replica: ReplicaView
    (replica,) = fleet.wait(lambda: fleet.snapshot().replicas_of(model), f"{model} is reported")
    return replica


def asking(fleet: Fleet, *models: str):
    return crowd(fleet.gateway_urls, models, QUESTION, TEXT)


def ended_once(fleet: Fleet, clients: Crowd, *allowed: str) -> Counter[str]:
    assert all(one.num_endings == (one.how != "connection") for one in clients.endings)
    counted = clients.counted()
    assert set(counted) <= {"whole", *allowed}, f"{counted}\n{fleet.describe()}"
    return counted


def test_a_cold_model_is_loaded_for_the_request_on_a_card_that_holds_it(fleet: Fleet) -> None:
    ending = ending_of(fleet.gateway_urls[0], "birch", QUESTION, TEXT, stream=True)
    assert ending.how == "whole", fleet.describe()
    replica, pinned = reported(fleet, "birch"), reported(fleet, PINNED)
    assert replica.neuron == "beast"
    assert (replica.neuron, replica.devices) != (pinned.neuron, pinned.devices)


def test_models_that_do_not_fit_together_have_time_slices(fleet: Fleet) -> None:
    with asking(fleet, *SIZES) as clients:
        fleet.wait(
            lambda: len({one.model for one in clients.endings}) == len(SIZES), "each is answered"
        )
        fleet.wait(lambda: clients.num_whole() >= 40, "many answers")
    ended_once(fleet, clients)


def test_a_killed_gateway_takes_only_its_own_requests_along(fleet: Fleet) -> None:
    gateway = fleet.programs["gateway-0"]
    with asking(fleet, PINNED) as clients:
        fleet.wait(lambda: clients.num_whole() >= 3, "answers come")
        gateway.kill()
        before = clients.num_whole()
        fleet.wait(lambda: clients.num_whole() >= before + 5, "the other one answers")
        gateway.start()
        before = clients.num_whole()
        fleet.wait(lambda: clients.num_whole() >= before + 5, "answers come")
    ended_once(fleet, clients, "connection")
    lost = {one.gateway_url for one in clients.endings if one.how == "connection"}
    assert lost <= {fleet.gateway_urls[0]}


def test_a_killed_control_is_followed_by_another_and_a_killed_neurons_model_comes_back(
    fleet: Fleet,
) -> None:
    """What shows that one leads: the pinned model, which went with its neuron, is loaded."""
    (home,) = fleet.wait(lambda: fleet.ready(PINNED), "the pinned model is reported")
    with asking(fleet, PINNED) as clients:
        fleet.wait(lambda: clients.num_whole() >= 3, "answers come")
        fleet.programs["control-0"].kill()
        fleet.programs[home].kill()
        fleet.wait(lambda: home not in fleet.ready(PINNED), "its neuron is gone")
        fleet.wait(lambda: fleet.ready(PINNED), "it is loaded elsewhere")
        before = clients.num_whole()
        fleet.wait(lambda: clients.num_whole() >= before + 10, "answers come again")
        fleet.programs["control-0"].start()
        fleet.programs[home].start()
        fleet.wait(lambda: len(fleet.snapshot().neurons) == len(CARDS), "it is back")
    ended_once(fleet, clients, *ENDINGS_OF_A_KILLED_NEURON)


def test_a_killed_redis_ends_what_is_open_and_all_find_its_next_life(harmed: Harmed) -> None:
    fleet = harmed.fleet
    settled(fleet)
    with asking(fleet, PINNED) as clients:
        fleet.wait(lambda: clients.num_whole() >= 3, "answers come")
        harmed.redis.kill()
        harmed.redis.start()
        before = clients.num_whole()
        fleet.wait(lambda: clients.num_whole() >= before + 10, "answers come again")
    ended_once(fleet, clients, "redis_unavailable", "neuron_lost", "no_neuron", "model_loading")
    settled(fleet)
