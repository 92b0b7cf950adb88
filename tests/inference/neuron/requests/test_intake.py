"""Intake for the engine: bounded, fair between accounts, and what hangs delays no others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from inference.neuron.requests.intake import (
    MAX_OF_BOTH,
    MAX_OF_EITHER,
    MAX_PREPARED,
    MAX_STUCK,
    STUCK_AFTER_S,
    Intake,
    IntakeLimits,
)
from inference.neuron.requests.request_table import AddressedEvent, RequestTable
from inference.neuron.requests.starter import PreparingMarks, Starter
from inference.neuron.text.model_text import ModelText
from inference.protocol.events import Cancelled, Event, Failed
from inference.protocol.generation import TokensInput
from tests.inference.neuron.conftest import PanicError, wait_until
from tests.inference.neuron.model_texts import (
    RecordingEngine,
    model_text,
    request_for_model,
    submit_of,
)


class Neuron:
    """An intake with a gate: requests for models "stuck…" stay where they are prepared until it is
    opened, and those for "stuck-longest…" until the last gate is."""

    def __init__(self, text: ModelText, limits: IntakeLimits | None = None) -> None:
        self.text = text
        self.engine = RecordingEngine()
        self.table = RequestTable()
        self.events: dict[str, list[Event]] = {}
        self.begun: list[str] = []
        self.now_s = 0.0
        self.gate, self.last_gate = threading.Event(), threading.Event()
        starter = Starter(
            table=self.table, publish=self.publish, take=self.take, read_images=lambda _: {}
        )
        marks = PreparingMarks(redis.Redis(), neuron="n1", epoch="e")  # never connects
        self.intake = Intake(starter, marks, limits, clock=lambda: self.now_s)

    def publish(self, events: list[AddressedEvent]) -> None:
        for _, event in events:
            self.events.setdefault(event.request_id, []).append(event)

    def take(self, model: str) -> Any:
        self.begun.append(model)
        if model.startswith("stuck"):
            assert (self.last_gate if model.startswith("stuck-longest") else self.gate).wait(60)
        if model == "stuck-panics":
            raise PanicError
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
        request = request_for_model(TokensInput(prompts=[[7] * prompt]))
        given = {"model": model, "account": account, "is_anonymous": False} | fields
        self.intake.put(submit_of(request_id, request, **given), num_bytes)

    def num_stuck(self) -> int:
        return sum(model.startswith("stuck") for model in self.begun)

    def wait_idle(self) -> None:
        wait_until(lambda: self.intake.pending == (0, 0))

    def refused(self, request_id: str, code: str, *words: str) -> bool:
        for event in self.events.get(request_id, []):
            assert isinstance(event, Failed) and event.failure.code == code
            assert all(word in event.failure.message for word in words)
        return request_id in self.events


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


@pytest.fixture
def neuron(make_neuron: Callable[..., Neuron]) -> Neuron:
    made = make_neuron()
    made.intake.start()
    return made


def test_bursts_delay_others_by_one_request_and_the_anonymous_yield(neuron: Neuron) -> None:
    """The order is that in which the only thread that works takes them: all threads are busy, and
    all but one stay so when the gate opens."""
    neuron.put("first", model="stuck", account="first")
    for index in range(MAX_PREPARED - 1):
        neuron.put(f"longest{index}", model=f"stuck-longest{index}", account=f"longest{index}")
    wait_until(lambda: len(neuron.begun) == MAX_PREPARED)
    for index in range(20):
        neuron.put(f"anon{index}", model="anon", account="anonymous", is_anonymous=True)
    for index in range(20):
        neuron.put(f"burst{index}", model=f"burst{index}", account="burst")
    neuron.put("single", model="single", account="single")
    neuron.gate.set()
    wait_until(lambda: len(neuron.begun) == MAX_PREPARED + 41)
    begun = neuron.begun[MAX_PREPARED:]
    assert begun.index("single") <= 1
    assert begun.index("anon") >= 20


def test_too_many_requests_or_bytes_are_refused(make_neuron: Callable[..., Neuron]) -> None:
    neuron = make_neuron(max_requests=4)
    for name, account, code, words in [
        *(("a0", "a", "", ()), ("a1", "a", "", ())),
        ("a2", "a", "rate_limit_exceeded", ["2 requests of this account"]),
        *(("b0", "b0", "", ()), ("b1", "b1", "", ())),
        ("b2", "b2", "queue_full", ["4 requests"]),
    ]:
        neuron.put(name, account=account)
        assert neuron.refused(name, code, *words) == bool(code)
    neuron = make_neuron(max_bytes=1000)
    for name, num_bytes, code, words in [
        ("a0", 400, "", ()),
        ("a1", 200, "rate_limit_exceeded", ["400 bytes of this account", "500 bytes"]),
        ("b0", 500, "", ()),
        ("c0", 101, "queue_full", ["900 bytes", "1000 bytes"]),
    ]:
        neuron.put(name, num_bytes, account=name[0])
        assert neuron.refused(name, code, *words) == bool(code)
    alone = make_neuron(max_bytes=1000)
    alone.put("large", 5000)
    assert "large" not in alone.events
    neuron = make_neuron(max_requests=2, max_bytes=1000)
    neuron.intake.start()
    for index in range(6):  # what was prepared makes room
        neuron.put(f"r{index}", 400)
        neuron.wait_idle()
    assert len(neuron.engine.sent) == 6


def test_the_engine_gets_who_asks_and_shares_nothing(make_neuron: Callable[..., Neuron]) -> None:
    neuron = make_neuron()
    neuron.put("known", account="acme", weight=3)
    neuron.put("nobody", account="anonymous", is_anonymous=True)
    neuron.put("later", account="acme", yields=True)
    neuron.put("known", account="acme")  # again
    neuron.put("poor", prompt=20, max_prompt_tokens=19)
    neuron.put("capped", prompt=20, max_prompt_tokens=20, cap_output_tokens=6)
    neuron.put("gone", model="gone")
    assert [event for _, event in neuron.table.cancel("gone")] == [Cancelled(request_id="gone")]
    neuron.intake.start()
    neuron.wait_idle()
    assert neuron.begun == ["m"] * 5
    sent: Any = {command.sequence_id: command for command in neuron.engine.sent}
    assert set(sent) == {"known/0", "nobody/0", "later/0", "capped/0"}
    assert neuron.refused("poor", "insufficient_quota")
    assert sent["capped/0"].params.max_tokens == 6
    assert sent["known/0"].weight == 3
    for name, account, is_anonymous, salt in [
        ("known", "acme", False, "acme"),
        ("nobody", "anonymous", True, ""),
        ("later", "acme", True, "acme"),
    ]:
        command = sent[f"{name}/0"]
        assert (command.account, command.is_anonymous) == (account, is_anonymous)
        assert command.cache_salt == salt
    neuron.put("prepared", model="stuck")
    wait_until(neuron.num_stuck)
    neuron.table.cancel("prepared")
    neuron.gate.set()
    neuron.wait_idle()
    assert len(neuron.engine.sent) == 4, "it was cancelled while it was prepared"
    neuron.engine.send = lambda command: neuron.table.cancel("handed-over")
    neuron.put("handed-over")
    neuron.wait_idle()
    assert neuron.engine.cancelled == ["handed-over/0"], "that follows its submit"


def test_what_hangs_holds_up_its_account_and_model_alone(neuron: Neuron) -> None:
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
    neuron.wait_idle()
    assert neuron.num_stuck() == 30
    neuron.gate.clear()
    neuron.begun.clear()
    for index in range(10):  # either has a bound over all
        neuron.put(f"of-model{index}", model="stuck", account=f"a{index}")
        neuron.put(f"of-account{index}", model=f"stuck{index}", account="b")
    wait_until(lambda: neuron.num_stuck() == 2 * MAX_OF_EITHER)
    neuron.put("another", model="n", account="c")
    wait_until(lambda: "another" in neuron.events)
    assert neuron.begun.count("stuck") == neuron.num_stuck() / 2 == MAX_OF_EITHER
    neuron.intake.stop()  # what waits is prepared before
    neuron.gate.set()
    neuron.wait_idle()
    assert neuron.num_stuck() == 20


def test_what_hangs_is_named_and_too_much_takes_it_out_of_service(neuron: Neuron) -> None:
    for num_put in range(1, MAX_STUCK + 2):
        assert neuron.intake.is_ready
        model = "stuck-panics" if num_put == 1 else f"stuck{num_put}"
        neuron.put(f"r{num_put}", model=model, account=f"a{num_put}", key="hx-1")
        wait_until(lambda expected=num_put: neuron.num_stuck() == expected)
        assert len(neuron.intake.stuck()) == num_put - 1
        neuron.now_s += STUCK_AFTER_S + 1
        assert len(neuron.intake.stuck()) == num_put
        if num_put == 2:
            assert neuron.intake.stuck() == [
                "request r1 (account a1, key hx-1) for stuck-panics has been prepared for 602 s",
                "request r2 (account a2, key hx-1) for stuck2 has been prepared for 301 s",
            ]
            neuron.put("waits", model="free", account="b")
            wait_until(lambda: "free" in neuron.begun)
    assert not neuron.intake.is_ready
    neuron.gate.set()
    neuron.last_gate.set()
    wait_until(lambda: neuron.intake.is_ready and not neuron.intake.stuck())
    neuron.put("after", model="after")
    wait_until(lambda: "after" in neuron.begun)
