"""Intake for the engine: bounded, fair between accounts, and long requests delay no others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from inference.neuron.requests.intake import (
    KIB,
    MAX_SLOW,
    MAX_SLOW_OF_BOTH,
    MAX_SLOW_OF_EITHER,
    SLOW_AFTER_S,
    Intake,
    IntakeLimits,
)
from inference.neuron.requests.request_table import AddressedEvent, RequestTable
from inference.neuron.requests.starter import PreparingMarks, Starter
from inference.neuron.text.model_text import ModelText
from inference.protocol.engine import SubmitSequence
from inference.protocol.events import Accepted, Cancelled, Event, Failed
from inference.protocol.generation import GenerationRequest, Submit, TokensInput
from inference.protocol.sampling import SamplingOptions
from tests.inference.neuron.model_texts import model_text
from tests.inference.neuron.recording_engine import RecordingEngine


class Neuron:
    """An intake with a gate: requests for models "stuck…" stay where they are prepared until it is
    opened, and those for "stuck-longest" until the last gate is. Its clock stands still."""

    def __init__(self, text: ModelText, limits: IntakeLimits | None = None) -> None:
        self.text = text
        self.engine = RecordingEngine()
        self.table = RequestTable()
        self.events: dict[str, list[Event]] = {}
        self.begun: list[str] = []
        self.now_s = 0.0
        self.gate, self.last_gate = threading.Event(), threading.Event()
        starter = Starter(
            table=self.table,
            publish=self.publish,
            take=self.take,
            read_images=lambda _: {},
        )
        marks = PreparingMarks(redis.Redis(), neuron="n1", epoch="e")  # never connects
        self.intake = Intake(starter, marks, limits, clock=lambda: self.now_s)

    def publish(self, events: list[AddressedEvent]) -> None:
        for _, event in events:
            self.events.setdefault(event.request_id, []).append(event)

    def take(self, model: str) -> Any:
        self.begun.append(model)
        if model.startswith("stuck"):
            assert (self.last_gate if model == "stuck-longest" else self.gate).wait(60)
        return self.engine, self.text

    def put(
        self,
        request_id: str,
        num_bytes: int = 100,
        *,
        model: str = "m",
        account: str = "acme",
        prompt: int = 5,
        **fields: Any,
    ) -> None:
        request = GenerationRequest(
            model=model,
            input=TokensInput(prompts=[[7] * prompt]),
            sampling=SamplingOptions(),
        )
        submit = Submit(
            request_id=request_id,
            gateway_id="g",
            model=model,
            request=request,
            deadline_unix_s=time.time() + 600,
            account=account,
            **({"is_anonymous": False} | fields),
        )
        self.intake.put(submit, num_bytes)

    def num_stuck(self) -> int:
        return sum(model.startswith("stuck") for model in self.begun)

    def failure(self, request_id: str) -> tuple[str, str]:
        (event,) = self.events[request_id]
        assert isinstance(event, Failed)
        return event.failure.code, event.failure.message


@pytest.fixture
def make_neuron(byte_level_dir: Path) -> Iterator[Callable[..., Neuron]]:
    neurons = []

    def make(**limits: int) -> Neuron:
        neuron = Neuron(model_text(byte_level_dir), IntakeLimits(**limits) if limits else None)
        neurons.append(neuron)
        return neuron

    yield make
    for neuron in neurons:
        neuron.gate.set()
        neuron.last_gate.set()
        neuron.intake.stop()


@pytest.mark.parametrize("long_bytes", [20 * KIB, 200 * KIB, 5000 * KIB])
def test_long_requests_hold_up_no_short_one(
    make_neuron: Callable[..., Neuron], wait_until: Callable[..., None], long_bytes: int
) -> None:
    neuron = make_neuron()
    neuron.intake.start()
    for index in range(5):
        neuron.put(f"long{index}", long_bytes, model="stuck")
    wait_until(lambda: "stuck" in neuron.begun)
    neuron.put("short")
    wait_until(lambda: "short" in neuron.events)
    assert isinstance(neuron.events["short"][0], Accepted)
    assert not any(name.startswith("long") for name in neuron.events)


def _in_one_lane_after(neuron: Neuron, wait_until: Callable[..., None], *models: str) -> None:
    """Both threads of the short lane are busy, so that what comes now waits."""
    neuron.intake.start()
    for index, model in enumerate(models or ("stuck0", "stuck1")):
        neuron.put(f"first{index}", model=model, account=f"first{index}")
    wait_until(lambda: len(neuron.begun) == 2)


def test_a_burst_delays_another_account_by_one_request(
    make_neuron: Callable[..., Neuron], wait_until: Callable[..., None]
) -> None:
    """The order is that in which the only thread that works takes them."""
    neuron = make_neuron()
    _in_one_lane_after(neuron, wait_until, "stuck", "stuck-longest")
    for index in range(200):
        neuron.put(f"burst{index}", model=f"burst{index}", account="burst")
    neuron.put("single", model="single", account="single")
    neuron.gate.set()
    wait_until(lambda: len(neuron.begun) == 203)
    assert neuron.begun.index("single") <= 2 + 1


def test_anonymous_callers_yield(
    make_neuron: Callable[..., Neuron], wait_until: Callable[..., None]
) -> None:
    neuron = make_neuron()
    _in_one_lane_after(neuron, wait_until)
    for index in range(20):
        neuron.put(f"anon{index}", model="anon", account="anonymous", is_anonymous=True)
    for index in range(20):
        neuron.put(f"known{index}", model="known")
    neuron.gate.set()
    wait_until(lambda: len(neuron.begun) == 42)
    assert neuron.begun[2:].index("anon") >= 19


def test_too_many_requests_are_refused_by_that_name(make_neuron: Callable[..., Neuron]) -> None:
    neuron = make_neuron(max_requests=4)
    for index in range(3):
        neuron.put(f"a{index}", account="a")
    code, message = neuron.failure("a2")
    assert code == "rate_limit_exceeded"
    assert "2 requests of this account" in message
    for index in range(3):
        neuron.put(f"b{index}", account=f"b{index}")
    code, message = neuron.failure("b2")
    assert code == "queue_full"
    assert "4 requests" in message


def test_too_many_bytes_are_refused_by_that_name(make_neuron: Callable[..., Neuron]) -> None:
    neuron = make_neuron(max_bytes=1000)
    neuron.put("a0", 400, account="a")
    neuron.put("a1", 200, account="a")
    code, message = neuron.failure("a1")
    assert code == "rate_limit_exceeded"
    assert "400 bytes of this account" in message and "500 bytes" in message
    neuron.put("b0", 500, account="b")
    neuron.put("c0", 101, account="c")
    code, message = neuron.failure("c0")
    assert code == "queue_full"
    assert "900 bytes" in message and "1000 bytes" in message


def test_one_large_request_alone_is_taken(make_neuron: Callable[..., Neuron]) -> None:
    neuron = make_neuron(max_bytes=1000)
    neuron.put("a", 5000)
    assert "a" not in neuron.events


def test_what_was_prepared_makes_room(
    make_neuron: Callable[..., Neuron], wait_until: Callable[..., None]
) -> None:
    neuron = make_neuron(max_requests=2, max_bytes=1000)
    neuron.intake.start()
    for index in range(6):
        neuron.put(f"r{index}", 400)
        wait_until(lambda: neuron.intake.pending == (0, 0))
    assert len(neuron.engine.sent) == 6


def test_a_request_cancelled_while_it_waits_is_not_prepared(
    make_neuron: Callable[..., Neuron], wait_until: Callable[..., None]
) -> None:
    neuron = make_neuron()
    neuron.put("gone", model="gone")
    assert [event for _, event in neuron.table.cancel("gone")] == [Cancelled(request_id="gone")]
    neuron.intake.start()
    wait_until(lambda: neuron.intake.pending == (0, 0))
    assert neuron.begun == []


def test_a_frame_delivered_twice_is_prepared_once(
    make_neuron: Callable[..., Neuron], wait_until: Callable[..., None]
) -> None:
    neuron = make_neuron()
    neuron.put("r")
    neuron.put("r")
    neuron.intake.start()
    wait_until(lambda: neuron.intake.pending == (0, 0))
    assert len(neuron.engine.sent) == 1


def test_the_engine_gets_who_asks_and_shares_nothing_of_theirs(
    make_neuron: Callable[..., Neuron], wait_until: Callable[..., None]
) -> None:
    neuron = make_neuron()
    neuron.intake.start()
    neuron.put("known", account="acme", weight=3)
    neuron.put("nobody", account="anonymous", is_anonymous=True)
    neuron.put("later", account="acme", yields=True)
    wait_until(lambda: len(neuron.engine.sent) == 3)
    sent = {command.sequence_id: command for command in neuron.engine.sent}
    known, nobody = sent["known/0"], sent["nobody/0"]
    assert isinstance(known, SubmitSequence) and isinstance(nobody, SubmitSequence)
    assert (known.account, known.weight, known.is_anonymous) == ("acme", 3, False)
    assert (nobody.account, nobody.is_anonymous) == ("anonymous", True)
    assert (known.cache_salt, nobody.cache_salt) == ("acme", "")
    later = sent["later/0"]
    assert isinstance(later, SubmitSequence)
    assert (later.account, later.is_anonymous, later.cache_salt) == ("acme", True, "acme")


def test_what_the_budget_does_not_buy_never_reaches_the_engine(
    make_neuron: Callable[..., Neuron], wait_until: Callable[..., None]
) -> None:
    neuron = make_neuron()
    neuron.intake.start()
    neuron.put("poor", prompt=20, max_prompt_tokens=19)
    neuron.put("capped", prompt=20, max_prompt_tokens=20, cap_output_tokens=6)
    wait_until(lambda: "poor" in neuron.events and "capped" in neuron.events)
    assert neuron.failure("poor")[0] == "insufficient_quota"
    wait_until(lambda: neuron.engine.sent)
    (command,) = neuron.engine.sent
    assert isinstance(command, SubmitSequence)
    assert (command.sequence_id, command.params.max_tokens) == ("capped/0", 6)


def _slow(neuron: Neuron, wait_until: Callable[..., None], expected: int) -> None:
    """Until as many requests are prepared and slow. One or two more may be on their way then."""

    def is_so() -> bool:
        neuron.now_s += 2 * SLOW_AFTER_S
        return neuron.num_stuck() >= expected

    wait_until(is_so)


def test_slow_requests_hold_up_their_account_and_model_alone(
    make_neuron: Callable[..., Neuron], wait_until: Callable[..., None]
) -> None:
    neuron = make_neuron()
    neuron.intake.start()
    for index in range(10):
        neuron.put(f"slow{index}", model="stuck", account="acme")
    _slow(neuron, wait_until, MAX_SLOW_OF_BOTH)
    for index in range(20):
        neuron.put(f"model{index}", model="other", account="acme")
        neuron.put(f"account{index}", model="another", account="other")
    wait_until(lambda: len(neuron.begun) - neuron.num_stuck() == 40)
    assert neuron.num_stuck() <= MAX_SLOW_OF_BOTH + 1
    neuron.gate.set()
    wait_until(lambda: neuron.intake.pending == (0, 0))
    assert neuron.num_stuck() == 10


def test_an_account_or_a_model_has_a_bound_of_slow_requests_over_all(
    make_neuron: Callable[..., Neuron], wait_until: Callable[..., None]
) -> None:
    neuron = make_neuron()
    neuron.intake.start()
    for index in range(10):
        neuron.put(f"of-model{index}", model="stuck", account=f"a{index}")
    _slow(neuron, wait_until, MAX_SLOW_OF_EITHER)
    for index in range(10):
        neuron.put(f"of-account{index}", model=f"stuck{index}", account="b")
    _slow(neuron, wait_until, 2 * MAX_SLOW_OF_EITHER)
    neuron.put("other", model="n", account="c")
    wait_until(lambda: "other" in neuron.events)
    assert neuron.num_stuck() <= 2 * MAX_SLOW_OF_EITHER + 2


def test_slow_requests_beyond_a_bound_keep_their_places(
    make_neuron: Callable[..., Neuron], wait_until: Callable[..., None]
) -> None:
    neuron = make_neuron()
    neuron.intake.start()
    for index in range(MAX_SLOW + 10):
        neuron.put(f"slow{index}", model=f"stuck{index}", account=f"a{index}")
    _slow(neuron, wait_until, MAX_SLOW + 2)
    neuron.put("late", model="z", account="z")
    neuron.gate.set()
    wait_until(lambda: neuron.intake.pending == (0, 0))
    assert len(neuron.begun) == MAX_SLOW + 11


def test_what_is_held_is_prepared_before_the_intake_stops(
    make_neuron: Callable[..., Neuron], wait_until: Callable[..., None]
) -> None:
    neuron = make_neuron()
    neuron.intake.start()
    for index in range(6):
        neuron.put(f"slow{index}", model="stuck")
    _slow(neuron, wait_until, MAX_SLOW_OF_BOTH)
    neuron.intake.stop()
    neuron.gate.set()
    wait_until(lambda: neuron.intake.pending == (0, 0))
    assert neuron.num_stuck() == 6
