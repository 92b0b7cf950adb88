"""Each field of OpenAI's chat and completions that the OpenAPI document lists as honoured, at usual
and extreme values, on the default model. Other dialects' fields become the same request, which
``tests/golden`` pins; what is outside is refused in ``tests/inference/wire``, and penalties are
computed by hand in the engine's tests.

Eight requests run at once: those of one endpoint, in turns with a plain greedy request whose answer
must stay what it was alone. Answers are held to what must be by their requests alone.
"""

from __future__ import annotations

import json
import math
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import jsonschema
import pytest

from inference.wire.openapi import document
from tests.live.serving import MODEL

NUM_AT_ONCE = 8
ANSWER_TOKENS = 100
"""A penalty that breaks at the 65th token, or a mask that leaks, does not show in ten."""
TALE = "Write a long tale of a lighthouse keeper, a storm and a lost ship."
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
PERSON = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
Body = dict[str, Any]
SAMPLING: tuple[Body, ...] = (
    {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": 7},
    {"temperature": 2, "top_p": 0.01, "top_k": 49_152, "seed": 2**63 - 1},
    {"frequency_penalty": 2, "presence_penalty": -2, "repetition_penalty": 1.2},
    {"frequency_penalty": -2, "presence_penalty": 0.5, "repetition_penalty": 0.01},
    {"logit_bias": {"0": -100, "49151": 5}, "min_tokens": ANSWER_TOKENS},
    {"ignore_eos": True, "stop_token_ids": [0, 49_151], "n": 2},
    {"stop": [f"s{number}" for number in range(63)] + [" the"], "n": 8},
    {"guided_choice": ["yes", "no"]},
    {"guided_regex": "[a-c]{3,9}"},
    {"guided_json": SCHEMA},
    {"guided_grammar": 'start: "a" "b"+ "c"'},
    *({"structured_outputs": one} for one in ({"choice": ["yes", "no"]}, {"json": SCHEMA})),
    {"structured_outputs": {"regex": "[0-9]{4}"}, "return_token_ids": True},
    *({"response_format": one} for one in ({"type": "text"}, PERSON)),
    {"prompt_logprobs": 20, "user": "reader-7"},
)
BODIES: dict[str, tuple[Body, ...]] = {
    "/v1/chat/completions": (
        *SAMPLING,
        {"max_completion_tokens": 1, "safety_identifier": "reader-7"},
        {"logprobs": True, "top_logprobs": 20, "max_tokens": 300},
    ),
    "/v1/completions": (*SAMPLING, {"logprobs": 20, "echo": True, "max_tokens": 64}),
}
TALKED: dict[str, tuple[str, ...]] = {
    "/v1/chat/completions": (
        *("model", "messages", "stream", "stream_options", "tools", "tool_choice"),
        *("parallel_tool_calls", "prediction", "reasoning_effort", "include_reasoning"),
        *("add_generation_prompt", "continue_final_message", "chat_template_kwargs"),
    ),
    "/v1/completions": ("model", "prompt", "stream", "stream_options"),
}
"""Fields that every request here has, or that the official clients try (tests/live)."""
OPENAPI = document()


@pytest.mark.parametrize("path", BODIES)
def test_every_honoured_field_is_tried(path: str) -> None:
    body = OPENAPI["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    honoured = _honoured(str(body["$ref"].rpartition("/")[2]))
    tried = {name for body in BODIES[path] for name in body}
    assert honoured == tried | set(TALKED[path])


def _honoured(component: str) -> set[str]:
    fields = OPENAPI["components"]["schemas"][component]["properties"].items()
    return {name for name, declared in fields if declared.get("x-support") == "honoured"}


@dataclass(slots=True)
class Choice:
    text: str = ""
    reason: str | None = None
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Answer:
    choices: list[Choice]
    prompt_tokens: int
    completion_tokens: int


def body_of(path: str, fields: Body) -> Body:
    """A greedy request for a tale, with those fields."""
    body: Body = {"model": MODEL, "temperature": 0, "max_tokens": ANSWER_TOKENS}
    if path == "/v1/completions":
        body["prompt"] = "Once upon a time"
    else:
        body["messages"] = [{"role": "user", "content": TALE}]
    if "max_completion_tokens" in fields:
        del body["max_tokens"]
    return body | fields


def ask(client: httpx.Client, path: str, body: Body) -> Answer:
    response = client.post(path, json=body)
    assert response.status_code == 200, (body, response.text)
    answer, choices = response.json(), []
    for index, part in enumerate(answer["choices"]):
        assert part["index"] == index
        text = part["message"]["content"] if "message" in part else part["text"]
        logprobs = (part.get("logprobs") or {}).get("content") or []
        token_ids = part.get("token_ids") or []
        choices.append(Choice(text or "", part["finish_reason"], logprobs, token_ids))
    usage = answer["usage"]
    return Answer(choices, usage["prompt_tokens"], usage["completion_tokens"])


TOLERANCE = 2e-3
"""The tolerance of log probabilities: they are returned in five digits or so."""


def check(body: Body, answer: Answer) -> None:
    most = body.get("max_completion_tokens") or body["max_tokens"]
    num_choices = len(answer.choices)
    assert num_choices == body.get("n", 1)
    assert answer.prompt_tokens > 0
    assert answer.completion_tokens <= most * num_choices
    if "min_tokens" in body:
        assert answer.completion_tokens >= body["min_tokens"] * num_choices
    if body.get("ignore_eos") and "stop_token_ids" not in body:
        assert answer.completion_tokens == most * num_choices
    if body.get("return_token_ids"):
        assert sum(len(c.token_ids) for c in answer.choices) == answer.completion_tokens
    for choice in answer.choices:
        assert choice.reason, body
        for stop in body.get("stop", []):
            assert stop not in choice.text, (stop, choice.text)
        _check_form(body, choice)
        if body.get("logprobs") is True:
            _check_logprobs(body, choice)


def _check_form(body: Body, choice: Choice) -> None:
    """An answer that its length or a stop cut off need not be whole."""
    if choice.reason == "length" or "stop" in body:
        return
    outputs = body.get("structured_outputs") or {}
    if choices := body.get("guided_choice") or outputs.get("choice"):
        assert choice.text in choices
    if regex := body.get("guided_regex") or outputs.get("regex"):
        assert re.fullmatch(regex, choice.text)
    if "guided_grammar" in body:
        assert re.fullmatch("ab+c", choice.text)
    schema = body.get("guided_json") or outputs.get("json")
    schema = SCHEMA if body.get("response_format") == PERSON else schema
    if schema is not None:
        jsonschema.validate(json.loads(choice.text), schema)


def _check_logprobs(body: Body, choice: Choice) -> None:
    assert choice.logprobs
    for one in choice.logprobs:
        values = [other["logprob"] for other in one["top_logprobs"]]
        assert len(values) == body["top_logprobs"]
        assert -1e4 <= one["logprob"] <= TOLERANCE
        assert values == sorted(values, reverse=True)
        assert sum(math.exp(value) for value in values) <= 1 + TOLERANCE


@pytest.mark.slow
@pytest.mark.limit_s(900)
@pytest.mark.parametrize("path", BODIES)
def test_what_is_asked_for_is_kept_to_among_neighbours(client: httpx.Client, path: str) -> None:
    plain = body_of(path, {})
    alone = ask(client, path, plain)
    check(plain, alone)

    def one(fields: Body) -> None:
        body = body_of(path, fields)
        check(body, ask(client, path, body))
        assert ask(client, path, plain).choices == alone.choices, f"a neighbour of {fields}"

    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        list(pool.map(one, BODIES[path]))
