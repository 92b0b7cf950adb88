"""What breaks ends alone: a ``BaseException`` (a panic in Rust, ``SystemExit``) is named and ends
no thread of the neuron; schemas, grammars and templates that crash, hang or eat memory, through a
whole neuron, are their own request's error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from inference.neuron.loads.downloads import Downloads
from inference.neuron.loads.files import Fetcher
from inference.neuron.name_lease import connect
from inference.neuron.replicas import engine_run
from inference.neuron.requests import starter
from inference.neuron.requests.publisher import EventPublisher
from inference.neuron.requests.request_table import AddressedEvent
from inference.neuron.text.answers import TextAnswer
from inference.protocol.events import Delta, Event, Failed, Finished
from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    GenerationRequest,
    OutputFormat,
    TextInput,
    TokenCountRequest,
    ToolChoice,
    ToolDefinition,
)
from inference.protocol.keys import EVENTS_FIRST_ENTRY_ID, events_key
from inference.protocol.neuron_tasks import CacheJobStatus, PullSpec
from inference.sandbox.pool import WorkerPool
from tests.inference.neuron.conftest import PanicError, TestNeuron, failure_of, wait_until
from tests.inference.neuron.devices import Machine
from tests.inference.neuron.model_texts import a_chat, request_for_model, template_file
from tests.inference.sandbox.jobs import LOOPS, TEMPLATE


class Breaks:
    """Stands before a function and raises so many times before it lets calls through."""

    def __init__(self, real: Callable[..., Any], *errors: BaseException) -> None:
        self.real = real
        self.errors = list(errors)

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self.errors:
            raise self.errors.pop()
        return self.real(*args, **options)


def test_a_request_that_breaks_ends_alone(
    loaded: TestNeuron, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two short ones used to end every short request to every model; an answer that broke ended its
    model's engine, and every request there."""
    errors: list[BaseException] = [PanicError(), SystemExit(1), KeyboardInterrupt(), PanicError()]
    monkeypatch.setattr(starter, "prepare", Breaks(starter.prepare, *errors))
    for request_id in [loaded.submit() for _ in errors]:
        assert failure_of(gateway.wait_end(request_id)).code == "engine_error"
    assert all(loaded.answers() for _ in range(3))
    neighbour, broken = loaded.running(), loaded.running()
    real_feed = TextAnswer.feed

    def feed(answer: TextAnswer, index: int, result: Any) -> list[Event]:
        if result.sequence_id == f"{broken}/0":
            raise PanicError
        return real_feed(answer, index, result)

    monkeypatch.setattr(TextAnswer, "feed", feed)
    assert failure_of(gateway.wait_end(broken)).code == "engine_error"
    num_before = len(gateway.events(neighbour))
    gateway.wait_events(neighbour, lambda events: len(events) > num_before + 5)
    assert gateway.replica().num_restarts == 0
    breaks = Breaks(engine_run.EngineRuns._take, PanicError())
    monkeypatch.setattr(engine_run.EngineRuns, "_take", lambda *taken: breaks(*taken))
    assert failure_of(gateway.wait_end(neighbour)).code == "engine_crashed", "of its supervisor"
    wait_until(lambda: gateway.wait_status("ready").num_restarts)


def test_a_heartbeat_that_breaks_continues_and_reports_it(neuron: TestNeuron, gateway: Any) -> None:
    service = neuron.service
    wait_until(gateway.heartbeat)
    service._requests.cancel_of_dead_gateways = Breaks(  # type: ignore[method-assign]
        service._requests.cancel_of_dead_gateways, PanicError("at byte 100")
    )
    problem = "the thread heartbeat broke once lately and was started again: PanicError: at byte"
    wait_until(lambda: any(one.startswith(problem) for one in gateway.heartbeat().thread_problems))
    assert gateway.heartbeat().is_ready
    beat_s = gateway.heartbeat().time_unix_s
    wait_until(lambda: gateway.heartbeat().time_unix_s > beat_s)


def test_a_pull_that_breaks_has_failed_and_the_next_one_runs(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    ends = {"first": CacheJobStatus.FAILED, "second": CacheJobStatus.CANCELLED}
    wait_until(lambda: {job.job_id: job.status for job in downloads.report().jobs} == ends)
    downloads.stop()


def test_events_are_sent_after_the_resender_broke(redis_url: str, redis_db: redis.Redis) -> None:
    client = connect(redis_url)
    publisher = EventPublisher(client, neuron="n1", epoch="e", on_lost=lambda _: None)
    publisher.publish([AddressedEvent("g", Delta(request_id="r", text="x"))])  # no stream yet
    once = Breaks(client.pipeline, PanicError(), PanicError())
    client.pipeline = once  # type: ignore[method-assign]
    wait_until(lambda: not once.errors)
    redis_db.xadd(events_key("n1", "g"), {b"": b""}, id=EVENTS_FIRST_ENTRY_ID)
    wait_until(lambda: redis_db.xlen(events_key("n1", "g")) == 2)


def test_a_load_or_waking_that_breaks_has_failed_and_others_have_their_turn(
    neuron: TestNeuron, cards: Machine, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    admission = neuron.service._context.admission
    for step in ("admit", "readmit"):
        monkeypatch.setattr(admission, step, Breaks(getattr(admission, step), PanicError()))
    assert neuron.refused(takes_gb=1, asleep_gb=1).code == "engine_crashed"
    neuron.load("other", takes_gb=1, asleep_gb=1)
    neuron.service.sleep_model("other", "j-sleep")
    gateway.wait_status("asleep", "other")
    neuron.load("other", takes_gb=1, asleep_gb=1, status=None)
    wait_until(lambda: gateway.wait_status("asleep", "other").failure is not None)
    assert gateway.replica("other").failure.code == "engine_crashed"
    neuron.load("other", takes_gb=1, asleep_gb=1)


LEAST = -(2**63)
EMOJI = "😀" * 50
TOOL_TEMPLATE = "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}" + TEMPLATE


def request(given: Any = None, **fields: Any) -> GenerationRequest:
    return request_for_model(given or a_chat(), max_tokens=2, **fields)


def is_fine(neuron: TestNeuron, model: str = "m") -> bool:
    return isinstance(neuron.ask(request=request(), model=model)[-1], Finished)


HOSTILE: list[dict[str, Any]] = [
    {"const": LEAST},
    {"properties": {"a": {"const": {"b": [LEAST + 1]}}}},
    {"enum": [1, LEAST]},
    {"type": "integer", "minimum": EMOJI},
    {"properties": {"a": {"type": "string", "maxLength": "a" + EMOJI}}},
    {"required": EMOJI},
    {"properties": {"a": {"$ref": [EMOJI]}}},
    {"type": "integer", "minimum": LEAST},
    {"type": "integer", "maximum": 2**64 - 1},
]
TEXTS: list[dict[str, Any]] = [
    {"regex": "(" * 5000},
    {"regex": "((a{1,1000}){1,1000}){1,1000}(?"},
    {"grammar": 'start: "a"{1,1000000000000000000000}'},
    {"grammar": "root ::= " + "(" * 20_000},
    {"grammar": "root ::= root root | root"},
    {"grammar": 'start: %json {"const": -9223372036854775808}'},
    {"choices": ["\0" * 10, EMOJI]},
]


@pytest.mark.slow
def test_hostile_schemas_and_texts_are_refused_at_their_place(neuron: TestNeuron) -> None:
    neuron.load(chat_template=template_file(TOOL_TEMPLATE))
    of_format, of_tool = "response_format.schema", "tools[0].function.parameters"
    for schema in HOSTILE:
        fields: dict[str, Any] = {"output_format": OutputFormat(path=of_format, schema=schema)}
        loose = ToolDefinition(name="f", path=of_tool, parameters=schema)
        strict = msgspec.structs.replace(loose, strict=True)
        forced = a_chat(tools=[loose], tool_choice=ToolChoice(mode="required"))
        for asked, place in [
            (request(**fields), of_format),
            (TokenCountRequest(model="m", input=a_chat(), **fields), of_format),
            (request(TextInput(texts=["Hi"]), **fields), of_format),
            (request(a_chat(tools=[strict])), of_tool),
            (request(forced), of_tool),
        ]:
            events = neuron.ask(request=asked)
            if asked.input is forced and isinstance(events[-1], Finished):
                continue  # what is not strict may lose what cannot be enforced
            failure = failure_of(events)
            assert failure.code in ("invalid_schema", "invalid_grammar"), (schema, failure)
            assert (failure.param or "").startswith(place), (schema, failure)
        assert is_fine(neuron)
    for demand in TEXTS:
        (*_, end) = neuron.ask(request=request(output_format=OutputFormat(path="guided", **demand)))
        if isinstance(end, Failed):  # else it was followed
            assert (end.failure.code, end.failure.param) == ("invalid_grammar", "guided"), end
        assert is_fine(neuron)
    assert neuron.gateway.replica().num_restarts == 0


@pytest.mark.slow
def test_a_template_that_fails_is_reported_on_load_and_to_clients(
    neuron: TestNeuron, caplog: pytest.LogCaptureFixture
) -> None:
    neuron.options["workers"] = WorkerPool()
    report = neuron.load(chat_template=template_file(LOOPS)).report
    assert "took too long for a short conversation" in report.template_problem
    for _ in range(3):
        assert failure_of(neuron.ask(request=request())).code == "template_limit_exceeded"
    (line,) = [one for one in caplog.messages if "chat template" in one]
    assert line.startswith("m: its chat template took too long")
    assert neuron.answers(), "to a text"
    refusing = (
        "{% for m in messages if m.role == 'assistant' %}{{ raise_exception('no answers') }}"
        "{% endfor %}{{ messages[0].content }}"
    )
    problem = "the model's chat template fails at turn 2 of 3 (assistant after user): no answers"
    report = neuron.load("other", "j2", chat_template=template_file(refusing)).report
    assert report.template_problem == problem
    turns = [ChatMessage(role=role, content="Hi") for role in ("user", "assistant", "user")]
    failure = failure_of(neuron.ask(request=request(ChatInput(messages=turns)), model="other"))
    assert (failure.code, failure.param) == ("template_render_failed", "messages")
    assert failure.message == problem
    assert is_fine(neuron, "other")
