"""Schemas, grammars and templates that crash, hang or eat memory, through a whole neuron: each is
its own request's error, and no other request is affected."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from inference.neuron.service import NeuronService
from inference.protocol.events import Cancelled, Event, Failed, Failure, Finished
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
from inference.protocol.load import LoadSpec
from inference.protocol.sampling import SamplingOptions
from inference.sandbox.pool import WorkerPool
from tests.inference.neuron.model_texts import template_file
from tests.inference.sandbox.jobs import LOOPS, TEMPLATE

pytestmark = pytest.mark.slow

MakeService = Callable[..., NeuronService]
LEAST = -(2**63)
EMOJI = "😀" * 50
TOOL_TEMPLATE = "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}" + TEMPLATE
LOOPS_ON_DEMAND = "{% if messages[0].content == 'loop' %}" + LOOPS + "{% endif %}" + TEMPLATE
"""Renders short conversations, and never comes to an end with one that begins with "loop"."""


def failure_of(events: list[Event]) -> Failure:
    (failed,) = [event for event in events if isinstance(event, Failed)]
    return failed.failure


def chat(text: str = "Hi", **fields: Any) -> ChatInput:
    return ChatInput(messages=[ChatMessage(role="user", content=text)], **fields)


def request(model: str = "m", text: str = "Hi", **fields: Any) -> GenerationRequest:
    made: dict[str, Any] = {"input": chat(text), "sampling": SamplingOptions(max_tokens=2)}
    return GenerationRequest(model=model, **(made | fields))


def json_format(schema: dict[str, Any]) -> OutputFormat:
    return OutputFormat(path="response_format.schema", schema=schema)


def tool(schema: dict[str, Any], *, strict: bool) -> ToolDefinition:
    path = "tools[0].function.parameters"
    return ToolDefinition(name="f", path=path, parameters=schema, strict=strict)


def asked(gateway: Any, service: NeuronService, request: Any, **fields: Any) -> list[Event]:
    request_id = gateway.submit(request=request, **fields)
    service.drain_inbox()
    events: list[Event] = gateway.wait_end(request_id)
    return events


@pytest.fixture
def serving(make_service: MakeService, fake_spec: Callable[..., LoadSpec], gateway: Any) -> Any:
    """A neuron with a model that takes tools, and asks it."""
    service = make_service()
    service.load_model(
        msgspec.structs.replace(fake_spec(), chat_template=template_file(TOOL_TEMPLATE))
    )
    gateway.wait_status("ready")
    return service


def is_fine(gateway: Any, service: NeuronService, model: str = "m") -> bool:
    return isinstance(asked(gateway, service, request(model), model=model)[-1], Finished)


HOSTILE: dict[str, dict[str, Any]] = {
    "const": {"const": LEAST},
    "const inside": {"properties": {"a": {"const": {"b": [LEAST + 1]}}}},
    "enum": {"enum": [1, LEAST]},
    "minimum of emoji": {"type": "integer", "minimum": EMOJI},
    "maxLength of emoji": {"properties": {"a": {"type": "string", "maxLength": "a" + EMOJI}}},
    "required of emoji": {"required": EMOJI},
    "reference that is none": {"properties": {"a": {"$ref": [EMOJI]}}},
    "least minimum": {"type": "integer", "minimum": LEAST},
    "greatest maximum": {"type": "integer", "maximum": 2**64 - 1},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_refused_at_their_place(
    serving: NeuronService, gateway: Any, name: str
) -> None:
    schema, process = HOSTILE[name], os.getpid()
    wholes: list[tuple[Any, str]] = [
        (request(output_format=json_format(schema)), "response_format.schema"),
        (
            TokenCountRequest(model="m", input=chat(), output_format=json_format(schema)),
            "response_format.schema",
        ),
        (
            request(input=TextInput(texts=["Hi"]), output_format=json_format(schema)),
            "response_format.schema",
        ),
        (request(input=chat(tools=[tool(schema, strict=True)])), "tools[0].function.parameters"),
    ]
    for whole, place in wholes:
        failure = failure_of(asked(gateway, serving, whole))
        assert failure.code in ("invalid_schema", "invalid_grammar"), failure
        assert (failure.param or "").startswith(place), failure
    forced = chat(tools=[tool(schema, strict=False)], tool_choice=ToolChoice(mode="required"))
    (*_, end) = asked(gateway, serving, request(input=forced))
    if isinstance(end, Failed):
        assert end.failure.code in ("invalid_schema", "invalid_grammar"), end
        assert (end.failure.param or "").startswith("tools[0].function.parameters"), end
    assert is_fine(gateway, serving)
    assert gateway.replica().num_restarts == 0
    assert os.getpid() == process


@pytest.mark.parametrize(
    "demand",
    [
        {"regex": "(" * 5000},
        {"regex": "((a{1,1000}){1,1000}){1,1000}(?"},
        {"grammar": 'start: "a"{1,1000000000000000000000}'},
        {"grammar": "root ::= " + "(" * 20_000},
        {"grammar": "root ::= root root | root"},
        {"grammar": 'start: %json {"const": -9223372036854775808}'},
        {"choices": ["\0" * 10, EMOJI]},
    ],
    ids=["deep", "repeated", "huge count", "deep GBNF", "endless GBNF", "nested JSON", "choices"],
)
def test_hostile_texts_are_refused_or_followed(
    serving: NeuronService, gateway: Any, demand: dict[str, Any]
) -> None:
    output_format = OutputFormat(path="guided", **demand)
    (*_, end) = asked(gateway, serving, request(output_format=output_format))
    if isinstance(end, Failed):
        assert (end.failure.code, end.failure.param) == ("invalid_grammar", "guided"), end
    assert is_fine(gateway, serving)


@pytest.fixture
def beside(make_service: MakeService, fake_spec: Callable[..., LoadSpec], gateway: Any) -> Any:
    """A neuron with "m", whose template hangs when it is asked to, and "other"."""
    service = make_service(workers=WorkerPool())
    service.load_model(
        msgspec.structs.replace(fake_spec(), chat_template=template_file(LOOPS_ON_DEMAND))
    )
    gateway.wait_status("ready")
    service.load_model(
        msgspec.structs.replace(fake_spec("other", "j2"), chat_template=template_file(TEMPLATE))
    )
    gateway.wait_status("ready", "other")
    return service


def test_a_template_that_hangs_holds_up_no_other_model(beside: NeuronService, gateway: Any) -> None:
    hanging = [gateway.submit(request=request(text="loop")) for _ in range(13)]
    beside.drain_inbox()
    for _ in range(10):
        assert is_fine(gateway, beside, "other")
    gateway.read()
    assert any(not gateway.events(request_id) for request_id in hanging)
    for request_id in hanging[3:]:
        gateway.cancel(request_id)
    beside.drain_inbox()
    for request_id in hanging[3:]:
        assert isinstance(gateway.wait_end(request_id)[-1], Cancelled | Failed)
    for request_id in hanging[:3]:
        failure = failure_of(gateway.wait_end(request_id))
        assert (failure.code, failure.param) == ("template_limit_exceeded", "messages")
        assert "took too long" in failure.message
    assert is_fine(gateway, beside)


def test_a_template_that_never_renders_is_reported_on_load(
    make_service: MakeService,
    fake_spec: Callable[..., LoadSpec],
    gateway: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = make_service(workers=WorkerPool())
    service.load_model(msgspec.structs.replace(fake_spec(), chat_template=template_file(LOOPS)))
    report = gateway.wait_status("ready").report
    assert "took too long for a short conversation" in report.template_problem
    for _ in range(3):
        failure = failure_of(asked(gateway, service, request()))
        assert failure.code == "template_limit_exceeded"
    (line,) = [one for one in caplog.messages if "chat template" in one]
    assert line.startswith("m: its chat template took too long")
    text = request(input=TextInput(texts=["Hi"]))
    assert isinstance(asked(gateway, service, text)[-1], Finished)


def test_a_template_that_refuses_turns_is_reported_on_load_and_to_clients(
    make_service: MakeService, fake_spec: Callable[..., LoadSpec], gateway: Any
) -> None:
    service = make_service()
    refusing = (
        "{% for m in messages if m.role == 'assistant' %}{{ raise_exception('no answers') }}"
        "{% endfor %}{{ messages[0].content }}"
    )
    service.load_model(msgspec.structs.replace(fake_spec(), chat_template=template_file(refusing)))
    problem = "the model's chat template fails at turn 2 of 3 (assistant after user): no answers"
    assert gateway.wait_status("ready").report.template_problem == problem
    turns = [ChatMessage(role=role, content="Hi") for role in ("user", "assistant", "user")]
    failure = failure_of(asked(gateway, service, request(input=ChatInput(messages=turns))))
    assert (failure.code, failure.param) == ("template_render_failed", "messages")
    assert failure.message == problem
    assert is_fine(gateway, service)
