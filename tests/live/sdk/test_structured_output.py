"""Structured output through the openai SDK, with the grammar checked against each written token."""

from __future__ import annotations

import json
from typing import Any

import openai
import pydantic
import pytest

from tests.live.scripted.model import ScriptedModel
from tests.live.sdk.asking import OSLO_CALLS, WEATHER, Ask


class Step(pydantic.BaseModel):
    explanation: str
    result: float


class Solution(pydantic.BaseModel):
    steps: list[Step]
    answer: float


SCHEMA = Solution.model_json_schema()
GOOD = '{"steps": [{"explanation": "halve it", "result": 4}], "answer": 4}'


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "given", "schema": schema}}


def test_the_sdk_parses_its_own_classes(
    openai_client: openai.OpenAI, hermes: ScriptedModel
) -> None:
    hermes.answers("solve it", GOOD)
    messages: Any = [{"role": "user", "content": "solve it"}]
    parsed = openai_client.chat.completions.parse(
        model="hermes", messages=messages, response_format=Solution
    )
    assert parsed.choices[0].message.parsed == Solution.model_validate_json(GOOD)
    with openai_client.chat.completions.stream(
        model="hermes", messages=messages, response_format=Solution
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == Solution.model_validate_json(GOOD)


def test_what_the_schema_forbids_cannot_be_written(ask: Ask, hermes: ScriptedModel) -> None:
    wanted = schema_format(SCHEMA)
    for written in ("Four.", '{"steps": []}', GOOD.replace("4}", '"four"}')):
        hermes.answers("solve it badly", written)
        with pytest.raises(openai.APIError, match="grammar"):
            ask("solve it badly", response_format=wanted)


def test_json_object(ask: Ask, hermes: ScriptedModel) -> None:
    hermes.answers("any object", '{"a": [1, {"b": null}]}')
    hermes.answers("no object", "[1, 2]")
    wanted = {"type": "json_object"}
    answer = ask("any object", response_format=wanted).choices[0].message.content
    assert json.loads(answer or "") == {"a": [1, {"b": None}]}
    with pytest.raises(openai.APIError, match="grammar"):
        ask("no object", response_format=wanted)


def test_after_thinking(ask: Ask, hermes: ScriptedModel) -> None:
    hermes.answers("think, then solve", f"<think>\nfreely\n</think>\n\n{GOOD}")
    answer = ask(
        "think, then solve",
        response_format=schema_format(SCHEMA),
        extra_body={"include_reasoning": True},
    )
    assert json.loads(answer.choices[0].message.content or "") == json.loads(GOOD)


def test_beside_tools(ask: Ask, hermes: ScriptedModel) -> None:
    """A call or an answer of that form, nothing else."""
    fields: dict[str, Any] = {"tools": [WEATHER], "response_format": schema_format(SCHEMA)}
    hermes.answers("call or solve, call", OSLO_CALLS["hermes"])
    hermes.answers("call or solve, solve", GOOD)
    hermes.answers("call or solve, neither", "Neither.")
    assert ask("call or solve, call", **fields).choices[0].finish_reason == "tool_calls"
    solved = ask("call or solve, solve", **fields).choices[0].message
    assert json.loads(solved.content or "") == json.loads(GOOD)
    with pytest.raises(openai.APIError, match="grammar"):
        ask("call or solve, neither", **fields)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "objekt"}, "response_format.json_schema.schema"),
        (
            {"type": "object", "properties": {"x": {"type": "strnig"}}},
            "response_format.json_schema.schema",
        ),
        ({"$ref": "#/$defs/nowhere"}, "response_format.json_schema.schema"),
    ],
)
def test_schemas_that_are_none(ask: Ask, schema: dict[str, Any], path: str) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        ask("anything", response_format=schema_format(schema))
    assert refusal.value.code == "invalid_schema"
    assert (refusal.value.param or "").startswith(path)
