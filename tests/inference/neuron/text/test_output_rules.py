"""Which grammar a request comes to, and which of its schemas and tools are refused, by name."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inference.neuron.errors import RequestRefusedError
from inference.neuron.text.model_text import ModelText
from inference.neuron.text.output_rules import OutputRules, output_rules
from inference.protocol.events import Failure
from inference.protocol.generation import (
    GenerationRequest,
    OutputFormat,
    TextInput,
    ToolChoice,
    ToolDefinition,
)
from inference.sandbox.build import keep_tokenizer
from inference.sandbox.fork_server import perform
from inference.sandbox.jobs import Job, Result, decode_job, decode_result, encode_job, encode_result
from inference.sandbox.pool import WorkerPool
from inference.text.tool_calls import FORMATS
from inference.text.tool_calls.call_parser import CallArguments, CallStarted
from inference.text.tool_calls.python_formats import Llama3Format
from inference.text.tool_calls.tag_formats import QWEN_CODER, TagFormat
from tests.cases import each_case
from tests.inference.neuron.model_texts import CHAT_TEMPLATE, a_chat, model_text
from tests.inference.sandbox.jobs import PANICS

FORMAT = OutputFormat(path="response_format.json_schema.schema", schema={"type": "integer"})
TOOL = ToolDefinition(name="f", path="tools[0].function.parameters")
REQUIRED = ToolChoice(mode="required")


class NoWorkers(WorkerPool):
    def run(self, job: Job, is_wanted: Callable[[], bool] = lambda: True) -> Result:
        return decode_result(encode_result(perform(decode_job(encode_job(job)), 2**20)))


@pytest.fixture(scope="module")
def text(thinking_dir: Path) -> ModelText:
    loaded = model_text(thinking_dir, chat_template=CHAT_TEMPLATE)
    assert loaded.facts is not None
    keep_tokenizer(loaded.facts)
    return dataclasses.replace(loaded, tool_format=FORMATS["hermes"], pool=NoWorkers())


def _request(output_format: OutputFormat | None = None, **chat: Any) -> GenerationRequest:
    return GenerationRequest(model="m", input=a_chat(**chat), output_format=output_format)


def _grammars(request: GenerationRequest, text: ModelText) -> list[dict[str, Any]]:
    grammar = output_rules(request, text).grammar
    return json.loads(grammar.text)["grammars"]


def _refusal(request: GenerationRequest, text: ModelText) -> Failure:
    with pytest.raises(RequestRefusedError) as refused:
        output_rules(request, text)
    return refused.value.failure


def _llama(text: ModelText) -> ModelText:
    return dataclasses.replace(text, tool_format=Llama3Format())


def test_which_grammar_a_request_comes_to(text: ModelText) -> None:
    for chat in ({}, {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": ToolChoice(mode="none")}):
        assert output_rules(_request(**chat), text).grammar is None
    of_text = GenerationRequest(model="m", input=TextInput(texts=["x"]), output_format=FORMAT)
    for request, kind in (
        (_request(FORMAT), "integer"),
        (of_text, "integer"),
        (_request(OutputFormat(path="response_format")), "object"),
    ):
        (grammar,) = _grammars(request, text)
        assert grammar["json_schema"]["type"] == kind
    # Required calls win over the format.
    for output_format, model in ((None, text), (FORMAT, text), (FORMAT, _llama(text))):
        request = _request(output_format, tools=[TOOL], tool_choice=REQUIRED)
        (grammar,) = _grammars(request, model)
        assert 'f\\"' in grammar["lark_grammar"] or '"f"' in grammar["lark_grammar"]
    # Else the answer is a call or the JSON.
    rules, calls, answer = _grammars(_request(FORMAT, tools=[TOOL]), text)
    assert rules["lark_grammar"] == f"start: (@{calls['name']} | @{answer['name']})"
    _, call, answer = _grammars(_request(FORMAT, tools=[TOOL]), _llama(text))
    assert call["json_schema"]["properties"]["name"] == {"const": "f"}
    assert answer["json_schema"]["type"] == "integer"
    # A model that may think may think first.
    rules, answer = _grammars(_request(FORMAT, shows_reasoning=True), text)
    assert rules["lark_grammar"].startswith(f"start: thought? (@{answer['name']})")
    assert len(_grammars(_request(FORMAT, thinking=False), text)) == 1
    without = dataclasses.replace(text, markers=None)
    assert len(_grammars(_request(FORMAT, shows_reasoning=True), without)) == 1
    assert text.markers is not None
    for thinking in (None, False):  # a template may open it whatever the request asks
        request = _request(FORMAT, thinking=thinking)
        opened = output_rules(request, text, starts_thinking=True).grammar
        assert opened.starts_after_token_id == text.markers.end_token_id


PLACE = "tools[1].function.parameters"


def _tool(parameters: dict[str, Any], **kwargs: Any) -> ToolDefinition:
    return ToolDefinition(name="g", path=PLACE, parameters=parameters, **kwargs)


def _x(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}}


def _guided(**demand: Any) -> GenerationRequest:
    return _request(OutputFormat(path="guided", **demand))


def _forced(parameters: dict[str, Any]) -> GenerationRequest:
    return _request(tools=[TOOL, _tool(parameters)], tool_choice=REQUIRED)


@each_case(
    ("request_", "code", "param"),
    [
        (
            _request(OutputFormat(path="schema", schema=_x({"not": {}}))),
            "invalid_schema",
            "schema.properties.x.not",
        ),
        (_guided(regex="("), "invalid_grammar", "guided"),
        (_guided(grammar="start: nothing"), "invalid_grammar", "guided"),
        (_guided(grammar="root ::= ("), "invalid_grammar", "guided"),
        (
            _request(tools=[TOOL, _tool(_x({"uniqueItems": True}), strict=True)]),
            "invalid_schema",
            f"{PLACE}.properties.x.uniqueItems",
        ),
        (
            _request(tools=[TOOL], tool_choice=ToolChoice(mode="required", name="h")),
            ...,
            "tool_choice",
        ),
        (_request(tool_choice=REQUIRED), ..., "tool_choice"),
        *(  # what is no schema, where a call is forced
            (_forced(parameters), "invalid_schema", f"{PLACE}.properties{place}")
            for parameters, place in (
                ({"properties": {"a": {}, "x": PANICS}}, ".x.minLength"),
                (_x({"anyOf": [{}, PANICS]}), ".x.anyOf[1].minLength"),
                (_x({**PANICS, "type": "string", "nullable": True}), ".x.minLength"),
                (_x({"type": "strin"}), ".x.type"),
                (_x({"required": True}), ".x.required"),
                ({"properties": ["x"]}, ""),
            )
        ),
    ],
)
def test_what_cannot_be_enforced_is_refused_at_its_place(
    text: ModelText, request_: GenerationRequest, code: Any, param: str
) -> None:
    failure = _refusal(request_, text)
    assert code in (failure.code, ...) and failure.param == param
    assert failure.code != "invalid_schema" or failure.message.startswith(param)


MAIL = {"type": "string", "pattern": r"^(?!\.)(?!.*\.\.)[a-z.]+@[a-z.]+$"}
"""As Zod 4 writes an e-mail address."""
ODD: list[tuple[dict[str, Any], list[str]]] = [
    (MAIL, ["pattern"]),
    ({"anyOf": [MAIL, {"type": "null"}]}, ["anyOf[0].pattern"]),
    ({"type": "array", "items": MAIL, "uniqueItems": True}, ["uniqueItems", "items.pattern"]),
    ({"propertyNames": {"enum": ["a", "b"]}}, ["propertyNames"]),
    ({"type": "string", "format": "odd"}, ["format"]),
    ({"type": "integer", "format": "int32", "multipleOf": 10_007}, ["format", "multipleOf"]),
    ({"not": {"const": 1}, "type": "integer", "minimum": 0}, ["not"]),
    ({"$ref": "#/$defs/missing"}, ["$ref"]),
    ({"$ref": "https://example.org/schema"}, ["$ref"]),
    ({"oneOf": [{"type": "string"}, {"minLength": 3}]}, ["oneOf"]),
    ({"enum": [1, 2**63]}, ["enum"]),
    ({"type": "object", "properties": {"a": {}}, "minProperties": 1}, ["minProperties"]),
]


@each_case(("odd", "places"), ODD)
def test_a_schema_that_is_not_strict_loses_what_cannot_be_enforced(
    text: ModelText, odd: dict[str, Any], places: list[str]
) -> None:
    parameters = {"properties": {"x": odd, "y": {"type": "integer"}}, "required": ["y"]}
    loose, strict = _tool(parameters), _tool(parameters, strict=True)
    format_ = OutputFormat(path="f.schema", schema=parameters, strict=False)
    for request, path in (
        (_request(tools=[TOOL, loose], tool_choice=REQUIRED), loose.path),
        (_request(tools=[loose], tool_choice=ToolChoice(mode="required", name="g")), loose.path),
        (_request(FORMAT, tools=[TOOL, loose]), loose.path),
        (_request(format_), format_.path),
        (_request(format_, tools=[TOOL]), format_.path),
    ):
        rules = output_rules(request, text)
        assert list(rules.not_enforced) == [f"{path}.properties.x.{place}" for place in places]
        assert "integer" in rules.grammar.text  # what can be enforced is
    for request in (
        _request(tools=[strict], tool_choice=REQUIRED),
        _request(tools=[strict]),
        _request(FORMAT, tools=[TOOL, strict]),
        _request(msgspec.structs.replace(format_, strict=True)),
    ):
        failure = _refusal(request, text)
        assert failure.code == "invalid_schema"
        assert (failure.param or "").rpartition(".properties.x.")[2] in (*places, "enum[1]")
    for tool in (loose, strict, _tool(_x({"type": "strin"}))):  # which may not be called
        named = ToolChoice(mode="required", name="f")
        rules = output_rules(_request(tools=[TOOL, tool], tool_choice=named), text)
        assert rules.grammar is not None and not rules.not_enforced


def test_many_places_are_left_out_and_then_the_whole(text: ModelText) -> None:
    for num_fields in (20, 40):
        fields = {
            f"m{n}": {"oneOf": [{"type": "string"}, {"minLength": n}]} for n in range(num_fields)
        }
        tool = _tool({"properties": fields, "required": list(fields)})
        rules = output_rules(_request(tools=[tool], tool_choice=REQUIRED), text)
        each = [f"{PLACE}.properties.m{n}.oneOf" for n in range(num_fields)]
        assert list(rules.not_enforced) == (each if num_fields == 20 else [PLACE])
    for loose in (_tool(_x(MAIL)), _tool(_x(PANICS))):
        assert output_rules(_request(tools=[loose]), text) == OutputRules()
    bare = output_rules(_request(FORMAT, tools=[_tool(_x(MAIL))]), _llama(text))
    assert bare.grammar is not None
    assert not bare.not_enforced  # its arguments may be any object there


@each_case(
    ("value", "places"),
    [
        ({"type": "string", "pattern": "^a", "maxLength": 3}, [".pattern", ".maxLength"]),
        ({"$ref": "#/$defs/short"}, [""]),  # what is refused stands elsewhere
        ({"type": "array", "items": {"type": "string"}, "maxItems": 3}, []),
    ],
)
def test_what_a_models_own_format_cannot_express_is_left_out(
    text: ModelText, value: dict[str, Any], places: list[str]
) -> None:
    schema = {
        "type": "object",
        "properties": {"x": value, "y": {"type": "integer"}},
        "$defs": {"short": {"type": "string", "maxLength": 3}},
        "minProperties": 1,
        "required": ["x", "y"],
    }
    tags = dataclasses.replace(text, tool_format=TagFormat(QWEN_CODER))
    pattern = _tool(_x({"type": "string", "pattern": "^a"}), strict=True)
    failure = _refusal(_request(tools=[pattern]), tags)
    assert (failure.code, failure.param) == ("invalid_schema", f"{PLACE}.properties.x.pattern")
    tool = _tool(schema)
    rules = output_rules(_request(tools=[tool], tool_choice=REQUIRED), tags)
    expected = [".minProperties", *(f".properties.x{place}" for place in places)]
    assert list(rules.not_enforced) == [f"{tool.path}{place}" for place in expected]
    assert "integer" in rules.grammar.text


def test_unknown_forms_call_where_they_are_forced(text: ModelText, thinking_dir: Path) -> None:
    unknown = dataclasses.replace(text, tool_format=None)
    assert _refusal(_request(tools=[TOOL]), unknown).code == "unsupported_parameter"
    request: Any = _request(tools=[TOOL], tool_choice=REQUIRED)
    (part,) = _grammars(request, unknown)
    assert '\\"name\\": \\"f\\"' in part["lark_grammar"]
    found = unknown.tool_format_of(request.input)
    parser = found.parser([TOOL])
    parts = [*parser.feed('{"name": "f", "arguments": {}}'), *parser.flush()]
    assert parts == [CallStarted("f"), CallArguments("{}")]
    problem = "its tokenizer cannot be read"
    without = model_text(thinking_dir, chat_template=CHAT_TEMPLATE, grammar_problem=problem)
    assert "structured_output" not in without.capabilities
    assert output_rules(_request(), without).grammar is None
    failure = _refusal(_request(FORMAT), without)
    assert (failure.code, problem in failure.message) == ("unsupported_parameter", True)
