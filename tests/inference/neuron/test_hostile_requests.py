"""Schemas, grammars and templates that crash, hang or eat memory, through a whole neuron: each is
its own request's error, and no other request is affected."""

from __future__ import annotations

from typing import Any

import pytest

from inference.protocol.events import Failed, Finished
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
from inference.protocol.sampling import SamplingOptions
from inference.sandbox.pool import WorkerPool
from tests.inference.neuron.conftest import TestNeuron, failure_of
from tests.inference.neuron.model_texts import template_file
from tests.inference.sandbox.jobs import LOOPS, TEMPLATE

pytestmark = pytest.mark.slow

LEAST = -(2**63)
EMOJI = "😀" * 50
TOOL_TEMPLATE = "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}" + TEMPLATE


def chat(text: str = "Hi", **fields: Any) -> ChatInput:
    return ChatInput(messages=[ChatMessage(role="user", content=text)], **fields)


def request(model: str = "m", text: str = "Hi", **fields: Any) -> GenerationRequest:
    made: dict[str, Any] = {"input": chat(text), "sampling": SamplingOptions(max_tokens=2)}
    return GenerationRequest(model=model, **(made | fields))


def is_fine(neuron: TestNeuron, model: str = "m") -> bool:
    return isinstance(neuron.ask(request=request(model), model=model)[-1], Finished)


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


def test_hostile_schemas_and_texts_are_refused_at_their_place(neuron: TestNeuron) -> None:
    neuron.load(chat_template=template_file(TOOL_TEMPLATE))
    of_format, of_tool = "response_format.schema", "tools[0].function.parameters"
    for schema in HOSTILE:
        fields: dict[str, Any] = {"output_format": OutputFormat(path=of_format, schema=schema)}
        strict, loose = (
            ToolDefinition(name="f", path=of_tool, parameters=schema, strict=is_strict)
            for is_strict in (True, False)
        )
        forced = chat(tools=[loose], tool_choice=ToolChoice(mode="required"))
        for asked, place in [
            (request(**fields), of_format),
            (TokenCountRequest(model="m", input=chat(), **fields), of_format),
            (request(input=TextInput(texts=["Hi"]), **fields), of_format),
            (request(input=chat(tools=[strict])), of_tool),
            (request(input=forced), of_tool),
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
    asked = request("other", input=ChatInput(messages=turns))
    failure = failure_of(neuron.ask(request=asked, model="other"))
    assert (failure.code, failure.param) == ("template_render_failed", "messages")
    assert failure.message == problem
    assert is_fine(neuron, "other")
