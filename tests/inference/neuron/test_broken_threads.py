"""A ``BaseException`` (a panic in Rust, ``SystemExit``) ends the work that raised it, is named, and
ends no thread of the neuron."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from inference.neuron.loads.downloads import Downloads
from inference.neuron.loads.files import Fetcher
from inference.neuron.process.redis_client import connect
from inference.neuron.replicas import engine_run
from inference.neuron.replicas.engine_process import EngineProcess
from inference.neuron.requests import starter
from inference.neuron.requests.intake import MAX_STUCK, STUCK_AFTER_S, Intake
from inference.neuron.requests.publisher import EventPublisher
from inference.neuron.requests.request_table import AddressedEvent, RequestTable
from inference.neuron.requests.starter import PreparingMarks, Starter
from inference.neuron.service import NeuronService
from inference.neuron.text.answers import Answer
from inference.protocol.downloads import CacheJobStatus, PullSpec
from inference.protocol.events import Delta, Event, Failed, Finished
from inference.protocol.generation import GenerationRequest, Submit, TextInput
from inference.protocol.keys import EVENTS_FIRST_ENTRY_ID, events_key
from inference.protocol.load import LoadSpec
from tests.inference.neuron.devices import card, host
from tests.inference.neuron.test_service_memory import Host
from tests.inference.neuron.test_service_sleep import SLEEPER, asleep

MakeService = Callable[..., NeuronService]
WaitUntil = Callable[[Callable[[], object]], None]


class PanicError(BaseException):
    """Stands for PyO3's ``PanicException``."""


class Breaks:
    """Stands before a function and raises so many times before it lets calls through."""

    def __init__(self, real: Callable[..., Any], *errors: BaseException) -> None:
        self.real = real
        self.errors = list(errors)

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self.errors:
            raise self.errors.pop()
        return self.real(*args, **options)


def code_of(events: list[Event]) -> str:
    (failed,) = [event for event in events if isinstance(event, Failed)]
    return failed.failure.code


def test_more_panics_than_threads_leave_the_intake_whole(
    loaded: NeuronService, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two short ones used to end every short request to every model."""
    errors: list[BaseException] = [PanicError(), SystemExit(1), KeyboardInterrupt(), PanicError()]
    monkeypatch.setattr(starter, "prepare", Breaks(starter.prepare, *errors))
    broken = [gateway.submit() for _ in errors]
    loaded.drain_inbox()
    for request_id in broken:
        assert code_of(gateway.wait_end(request_id)) == "engine_error"
    for _ in range(3):
        request_id = gateway.submit(max_tokens=1)
        loaded.drain_inbox()
        assert isinstance(gateway.wait_end(request_id)[-1], Finished)


def test_an_answer_that_breaks_ends_alone(
    loaded: NeuronService, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to end its model's engine, and every request there."""
    neighbour, broken = gateway.submit(), gateway.submit()
    loaded.drain_inbox()
    for request_id in (neighbour, broken):
        gateway.wait_events(request_id, lambda events: len(events) > 2)
    real_feed = Answer.feed

    def feed(answer: Answer, index: int, result: Any) -> list[Event]:
        if result.sequence_id == f"{broken}/0":
            raise PanicError
        return real_feed(answer, index, result)

    monkeypatch.setattr(Answer, "feed", feed)
    assert code_of(gateway.wait_end(broken)) == "engine_error"
    num_before = len(gateway.events(neighbour))
    gateway.wait_events(neighbour, lambda events: len(events) > num_before + 5)
    assert gateway.replica().num_restarts == 0
    gateway.cancel(neighbour)
    loaded.drain_inbox()
    gateway.wait_end(neighbour)


def test_a_heartbeat_that_breaks_continues_and_reports_it(
    make_service: MakeService, gateway: Any, wait_until: WaitUntil
) -> None:
    service = make_service()
    wait_until(gateway.heartbeat)
    service._requests.cancel_of_dead_gateways = Breaks(  # type: ignore[method-assign]
        service._requests.cancel_of_dead_gateways, PanicError("at byte 100")
    )
    problem = "the thread heartbeat broke once lately and was started again: PanicError: at byte"
    wait_until(lambda: any(one.startswith(problem) for one in gateway.heartbeat().thread_problems))
    assert gateway.heartbeat().is_ready


def test_a_heartbeat_that_is_gone_is_started_by_the_next_request(
    make_service: MakeService, gateway: Any, wait_until: WaitUntil
) -> None:
    service = make_service()
    wait_until(gateway.heartbeat)
    thread = service._heart.thread
    service._heart._stopping = True  # as if its thread had been ended from below Python
    service._heart.beat_now()
    thread.join(60)
    service._heart._stopping = thread._record.has_ended = False
    assert thread.is_gone
    service.drain_inbox()
    beat_s = gateway.heartbeat().time_unix_s
    wait_until(lambda: gateway.heartbeat().time_unix_s > beat_s)


def test_a_pull_that_breaks_has_failed_and_the_next_one_runs(
    redis_url: str, tmp_path: Path, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetcher = Fetcher(tmp_path, lambda: 0)
    broken = Breaks(lambda *_: None, PanicError())
    monkeypatch.setattr(fetcher, "fetch", broken)
    downloads = Downloads(
        connect(redis_url), neuron="n1", fetcher=fetcher, used_paths=dict[str, list[Path]]
    )
    downloads.start()
    for job_id in ("first", "second"):
        downloads.pull(PullSpec(job_id=job_id, source="huggingface:a/b"))
    wait_until(lambda: [job.status for job in downloads.report().jobs].count("queued") == 0)
    wait_until(
        lambda: (
            {job.job_id: job.status for job in downloads.report().jobs}
            == {"first": CacheJobStatus.FAILED, "second": CacheJobStatus.CANCELLED}
        )
    )
    downloads.stop()


def test_events_are_sent_again_after_the_resender_broke(
    redis_url: str, redis_db: redis.Redis, wait_until: WaitUntil
) -> None:
    client = connect(redis_url)
    publisher = EventPublisher(client, neuron="n1", epoch="e", on_lost=lambda _: None)
    publisher.publish([AddressedEvent("g", Delta(request_id="r", text="x"))])  # no stream yet
    once = Breaks(client.pipeline, PanicError(), PanicError())
    client.pipeline = once  # type: ignore[method-assign]
    wait_until(lambda: not once.errors)
    redis_db.xadd(events_key("n1", "g"), {b"": b""}, id=EVENTS_FIRST_ENTRY_ID)
    wait_until(lambda: redis_db.xlen(events_key("n1", "g")) == 2)


def test_a_supervisor_that_breaks_starts_the_engine_again(
    loaded: NeuronService, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = gateway.submit()
    loaded.drain_inbox()
    gateway.wait_events(running, lambda events: len(events) > 2)
    breaks = Breaks(engine_run.EngineRuns._take, PanicError())
    monkeypatch.setattr(engine_run.EngineRuns, "_take", lambda *taken: breaks(*taken))
    assert code_of(gateway.wait_end(running)) == "engine_crashed"
    wait_ready_again(gateway)


def test_a_load_whose_supervisor_breaks_has_failed(
    make_service: MakeService,
    fake_spec: Any,
    gateway: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = make_service()
    admission = service._context.admission
    monkeypatch.setattr(admission, "admit", Breaks(admission.admit, PanicError()))
    service.load_model(fake_spec())
    state = gateway.wait_status("failed")
    assert state.failure.code == "engine_crashed"
    service.load_model(fake_spec(model="other"))
    gateway.wait_status("ready", "other")


def test_waking_that_breaks_leaves_it_asleep_and_others_their_turn(
    make_service: MakeService,
    fake_spec: Any,
    gateway: Any,
    monkeypatch: pytest.MonkeyPatch,
    wait_until: WaitUntil,
) -> None:
    cards = Host(card(0, 2), card(1, 20), host(100))
    service = make_service(discovery=cards)
    spec = fake_spec(**SLEEPER)
    asleep(service, cards, spec, gateway)
    admission = service._context.admission
    breaks = Breaks(admission.readmit, PanicError())
    monkeypatch.setattr(admission, "readmit", breaks)
    service.load_model(spec)
    wait_until(lambda: gateway.wait_status("asleep").failure is not None)
    assert gateway.replica().failure.code == "engine_crashed"
    service.load_model(spec)
    gateway.wait_status("ready")


def test_an_engine_whose_lines_break_their_reader_is_read_on(wait_until: WaitUntil) -> None:
    """The pipe would fill, and the engine with it stand still."""
    lines: list[bytes] = []
    spec = LoadSpec(job_id="j", model="m", source="path:/nowhere")
    program = "import sys\nfor i in range(50): print('x' * 4000, file=sys.stderr)"
    engine = EngineProcess(
        spec, [sys.executable, "-c", program], on_line=Breaks(lines.append, PanicError())
    )
    wait_until(lambda: len(lines) == 49)
    assert list(engine.messages()) == []
    assert engine.reap() == "exited with code 0"


def wait_ready_again(gateway: Any) -> None:
    while gateway.wait_status("ready").num_restarts == 0:
        pass


class StuckIntake:
    """An intake whose requests stay where they are prepared until ``gate`` is open."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.gate = threading.Event()
        self.begun: list[str] = []
        self.intake = Intake(
            Starter(
                table=RequestTable(),
                publish=lambda _: None,
                take=self.take,
                read_images=lambda _: {},
            ),
            PreparingMarks(redis.Redis(), neuron="n1", epoch="e"),  # never connects
            clock=lambda: self.now_s,
        )
        self.intake.start()

    def take(self, model: str) -> Any:
        self.begun.append(model)
        if model.startswith("stuck"):
            self.gate.wait(120)
        raise PanicError

    def put(self, model: str) -> None:
        self.intake.put(
            Submit(
                request_id=f"r-{model}",
                gateway_id="g",
                model=model,
                request=GenerationRequest(model=model, input=TextInput(texts=["x"])),
                deadline_unix_s=1e12,
                account=model,
                key="hx-1",
            ),
            100,
        )


@pytest.fixture
def stuck() -> Iterator[StuckIntake]:
    made = StuckIntake()
    yield made
    made.gate.set()
    made.intake.stop()


def test_requests_that_hang_are_named_and_hold_up_nobody(
    stuck: StuckIntake, wait_until: WaitUntil
) -> None:
    for index in range(2):
        stuck.put(f"stuck{index}")
    wait_until(lambda: len(stuck.begun) == 2)
    stuck.put("waits")
    assert stuck.intake.stuck() == []
    stuck.now_s += STUCK_AFTER_S + 1
    assert stuck.intake.stuck() == [
        f"request r-stuck{i} (account stuck{i}, key hx-1) for stuck{i} has been prepared for 301 s"
        for i in range(2)
    ]
    assert stuck.intake.is_ready
    wait_until(lambda: "waits" in stuck.begun)
    stuck.gate.set()
    wait_until(lambda: not stuck.intake.stuck())
    stuck.put("after")
    wait_until(lambda: "after" in stuck.begun)


def test_a_neuron_that_hangs_too_often_is_not_ready(
    stuck: StuckIntake, wait_until: WaitUntil
) -> None:
    for num_put in range(1, MAX_STUCK + 2):
        assert stuck.intake.is_ready
        stuck.put(f"stuck{num_put}")
        wait_until(lambda expected=num_put: len(stuck.begun) == expected)
        stuck.now_s += STUCK_AFTER_S + 1
        assert len(stuck.intake.stuck()) == num_put
    assert not stuck.intake.is_ready
    stuck.gate.set()
    wait_until(lambda: stuck.intake.is_ready)
