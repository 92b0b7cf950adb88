"""Intake for the engine: bounded, fair between accounts, and what hangs delays no others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from inference.neuron.requests.intake import (
    MAX_OF_BOTH,
    MAX_OF_EITHER,
    MAX_PREPARED,
    Intake,
    IntakeLimits,
)
from inference.neuron.requests.request_table import AddressedEvent, RequestTable
from inference.neuron.requests.starter import PreparingMarks, Starter
from inference.neuron.text.model_text import ModelText
from inference.protocol.engine import SubmitSequence
from inference.protocol.events import Cancelled, Event, Failed
from inference.protocol.generation import GenerationRequest, Submit, TokensInput
from inference.protocol.sampling import SamplingOptions
from tests.inference.neuron.model_texts import model_text
from tests.inference.neuron.recording_engine import RecordingEngine


class Neuron:
    """An intake with a gate: requests for models "stuck…" stay where they are prepared until it is
    opened, and those for "stuck-longest…" until the last gate is."""

    def __init__(self, text: ModelText, limits: IntakeLimits | None = None) -> None:
        self.text = text
        self.engine = RecordingEngine()
        self.table = RequestTable()
        self.events: dict[str, list[Event]] = {}
        self.begun: list[str] = []
        self.gate, self.last_gate = threading.Event(), threading.Event()
        starter = Starter(
            table=self.table,
            publish=self.publish,
            take=self.take,
            read_images=lambda _: {},
        )
        marks = PreparingMarks(redis.Redis(), neuron="n1", epoch="e")  # never connects
        self.intake = Intake(starter, marks, limits)

    def publish(self, events: list[AddressedEvent]) -> None:
        for _, event in events:
            self.events.setdefault(event.request_id, []).append(event)

    def take(self, model: str) -> Any:
        self.begun.append(model)
        if model.startswith("stuck"):
            assert (self.last_gate if model.startswith("stuck-longest") else self.gate).wait(60)
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


def _with_one_place_left(neuron: Neuron, wait_until: Callable[..., None]) -> None:
    """All threads are busy, and all but one stay so when the gate opens: what comes now is prepared
    by one thread."""
    neuron.intake.start()
    neuron.put("first", model="stuck", account="first")
    for index in range(MAX_PREPARED - 1):
        neuron.put(f"longest{index}", model=f"stuck-longest{index}", account=f"longest{index}")
    wait_until(lambda: len(neuron.begun) == MAX_PREPARED)


def test_a_burst_delays_another_account_by_one_request(
    make_neuron: Callable[..., Neuron], wait_until: Callable[..., None]
) -> None:
    """The order is that in which the only thread that works takes them."""
    neuron = make_neuron()
    _with_one_place_left(neuron, wait_until)
    for index in range(200):
        neuron.put(f"burst{index}", model=f"burst{index}", account="burst")
    neuron.put("single", model="single", account="single")
    neuron.gate.set()
    wait_until(lambda: len(neuron.begun) == MAX_PREPARED + 201)
    assert neuron.begun.index("single") <= MAX_PREPARED + 1


def test_anonymous_callers_yield(
    make_neuron: Callable[..., Neuron], wait_until: Callable[..., None]
) -> None:
    neuron = make_neuron()
    _with_one_place_left(neuron, wait_until)
    for index in range(20):
        neuron.put(f"anon{index}", model="anon", account="anonymous", is_anonymous=True)
    for index in range(20):
        neuron.put(f"known{index}", model="known")
    neuron.gate.set()
    wait_until(lambda: len(neuron.begun) == MAX_PREPARED + 40)
    assert neuron.begun[MAX_PREPARED:].index("anon") >= 19


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


def test_what_hangs_holds_up_its_account_and_model_alone(
    make_neuron: Callable[..., Neuron], wait_until: Callable[..., None]
) -> None:
    neuron = make_neuron()
    neuron.intake.start()
    for index in range(10):
        neuron.put(f"hangs{index}", 200_000, model="stuck", account="acme")
    wait_until(lambda: neuron.num_stuck() == MAX_OF_BOTH)
    for index in range(20):
        neuron.put(f"model{index}", model="other", account="acme")
        neuron.put(f"account{index}", model="another", account="other")
        neuron.put(f"both{index}", model="stuck", account="acme", yields=True)
    wait_until(lambda: len(neuron.begun) - neuron.num_stuck() == 40)
    assert neuron.num_stuck() == MAX_OF_BOTH
    neuron.gate.set()
    wait_until(lambda: neuron.intake.pending == (0, 0))
    assert neuron.num_stuck() == 30


def test_an_account_or_a_model_has_a_bound_over_all(
    make_neuron: Callable[..., Neuron], wait_until: Callable[..., None]
) -> None:
    neuron = make_neuron()
    neuron.intake.start()
    for index in range(10):
        neuron.put(f"of-model{index}", model="stuck", account=f"a{index}")
    wait_until(lambda: neuron.num_stuck() == MAX_OF_EITHER)
    for index in range(10):
        neuron.put(f"of-account{index}", model=f"stuck{index}", account="b")
    wait_until(lambda: neuron.num_stuck() == 2 * MAX_OF_EITHER)
    neuron.put("other", model="n", account="c")
    wait_until(lambda: "other" in neuron.events)
    assert neuron.num_stuck() == 2 * MAX_OF_EITHER
    neuron.gate.set()
    wait_until(lambda: neuron.intake.pending == (0, 0))
    assert neuron.num_stuck() == 20


def test_what_waits_is_prepared_before_the_intake_stops(
    make_neuron: Callable[..., Neuron], wait_until: Callable[..., None]
) -> None:
    neuron = make_neuron()
    neuron.intake.start()
    for index in range(6):
        neuron.put(f"hangs{index}", model="stuck")
    for index in range(MAX_PREPARED + 5):
        neuron.put(f"other{index}", model=f"stuck{index}", account=f"a{index}")
    wait_until(lambda: neuron.num_stuck() == MAX_PREPARED)
    neuron.intake.stop()
    neuron.gate.set()
    wait_until(lambda: neuron.intake.pending == (0, 0))
    assert neuron.num_stuck() == 6 + MAX_PREPARED + 5
