"""A lane whose threads wait for workers: another takes the place of each, up to a bound. One more
than that may be on its way when the bound is reached."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from inference.neuron.requests.intake import (
    MAX_PARKED,
    MAX_PARKED_OF_BOTH,
    MAX_PARKED_OF_EITHER,
    Lane,
    Waiting,
)
from inference.protocol.generation import GenerationRequest, Submit, TextInput

WaitUntil = Callable[[Callable[[], object]], None]


class Parking:
    """Requests whose id begins with "slow" park until the gate opens."""

    def __init__(self) -> None:
        self.lane = Lane(self.prepare, None, 2)
        self.gate = threading.Event()
        self.begun: list[str] = []
        self.ended: list[str] = []
        self._num_put = 0

    def prepare(self, waiting: Waiting) -> None:
        request_id = waiting.submit.request_id
        self.begun.append(request_id)
        if request_id.startswith("slow"):
            with self.lane.parked(waiting):
                assert self.gate.wait(60)
        self.ended.append(request_id)

    def put(self, request_id: str, *, account: str = "acme", model: str = "m") -> None:
        self._num_put += 1
        submit = Submit(
            request_id=request_id,
            gateway_id="g",
            model=model,
            account=account,
            request=GenerationRequest(model=model, input=TextInput(texts=["x"])),
            deadline_unix_s=time.time() + 600,
        )
        self.lane.put(Waiting(submit, 100, self.lane, self._num_put))

    def slow_begun(self) -> int:
        return sum(one.startswith("slow") for one in self.begun)


@pytest.fixture
def parking() -> Iterator[Parking]:
    made = Parking()
    made.lane.start()
    yield made
    made.gate.set()
    made.lane.stop()


def test_the_same_account_and_model_wait_and_others_continue(
    parking: Parking, wait_until: WaitUntil
) -> None:
    for index in range(10):
        parking.put(f"slow{index}")
    wait_until(lambda: parking.slow_begun() >= MAX_PARKED_OF_BOTH)
    for index in range(20):
        parking.put(f"model{index}", model="other")
        parking.put(f"account{index}", account="other")
    wait_until(lambda: len(parking.ended) == 40)
    assert parking.slow_begun() <= MAX_PARKED_OF_BOTH + 1
    parking.gate.set()
    wait_until(lambda: len(parking.ended) == 50)


def test_a_model_or_an_account_has_a_bound_over_all(
    parking: Parking, wait_until: WaitUntil
) -> None:
    for index in range(10):
        parking.put(f"slow-model{index}", account=f"a{index}")
    wait_until(lambda: parking.slow_begun() >= MAX_PARKED_OF_EITHER)
    for index in range(10):
        parking.put(f"slow-account{index}", account="b", model=f"m{index}")
    wait_until(lambda: parking.slow_begun() >= 2 * MAX_PARKED_OF_EITHER)
    parking.put("other", account="c", model="n")
    wait_until(lambda: parking.ended == ["other"])
    assert parking.slow_begun() <= 2 * MAX_PARKED_OF_EITHER + 2


def test_a_lane_parks_so_many_and_no_more(parking: Parking, wait_until: WaitUntil) -> None:
    """Beyond the bound a thread keeps its place."""
    for index in range(MAX_PARKED + 10):
        parking.put(f"slow{index}", account=f"a{index}", model=f"m{index}")
    wait_until(lambda: parking.slow_begun() == MAX_PARKED + 2)
    parking.put("late", account="z", model="z")
    parking.gate.set()
    wait_until(lambda: len(parking.ended) == MAX_PARKED + 11)


def test_what_is_held_is_prepared_before_the_lane_stops(
    parking: Parking, wait_until: WaitUntil
) -> None:
    for index in range(6):
        parking.put(f"slow{index}")
    wait_until(lambda: parking.slow_begun() >= MAX_PARKED_OF_BOTH)
    parking.lane.stop()
    parking.gate.set()
    wait_until(lambda: len(parking.ended) == 6)


def test_a_parked_thread_holds_no_place_that_another_could_be_given(
    parking: Parking, wait_until: WaitUntil
) -> None:
    parking.put("slow")
    wait_until(lambda: parking.lane._parked)
    (waiting,) = parking.lane._parked
    assert not parking.lane.relieve(waiting)
