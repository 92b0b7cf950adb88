"""Each field that the OpenAPI document lists as honoured, at usual and extreme values, on the
default model and on a small real encoder. What is outside is refused in ``tests/inference/wire``,
penalties are computed by hand in the engine's tests, and streams are those of ``tests/golden``.

Eight requests run at once: those of one endpoint, in turns with a plain greedy request whose answer
must stay what it was alone. Answers are held to what must be by their requests alone.
"""

from __future__ import annotations

import base64
import json
import math
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import numpy as np
import pytest

from inference.wire.openapi import document
from tests.embedding_model import REVISION, SHA256, SOURCE
from tests.live.serving import MODEL, Serve, create_model

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
OLLAMA: tuple[Body, ...] = (
    {"options.temperature": 0.7, "options.top_p": 0.9, "options.top_k": 40, "options.seed": 7},
    {"options.min_p": 0.1, "options.frequency_penalty": 2, "options.presence_penalty": -2},
    {"options.repeat_penalty": 1.2, "options.stop": [" the"], "options.num_predict": 64},
    *({"format": one} for one in ("json", SCHEMA)),
    {"logprobs": True, "top_logprobs": 20},
)
BODIES: dict[str, tuple[Body, ...]] = {
    "/v1/chat/completions": (
        *SAMPLING,
        {"max_completion_tokens": 1, "safety_identifier": "reader-7"},
        {"logprobs": True, "top_logprobs": 20, "max_tokens": 300},
    ),
    "/v1/completions": (*SAMPLING, {"logprobs": 20, "echo": True, "max_tokens": 64}),
    "/v1/messages": (
        {"temperature": 1, "top_p": 0.9, "top_k": 40, "metadata": {"user_id": "reader-7"}},
        {"stop_sequences": [" the"], "system": [{"type": "text", "text": "Be brief."}]},
        {"max_tokens": 1},
    ),
    "/v1/responses": (
        {"temperature": 2, "top_p": 0.9, "top_k": 40, "seed": 0, "user": "reader-7"},
        {"frequency_penalty": 2, "presence_penalty": -2, "safety_identifier": "reader-7"},
        {"instructions": "Be brief.", "max_output_tokens": 1},
    ),
    "/api/chat": OLLAMA,
    "/api/generate": (*OLLAMA, {"system": "Be brief."}, {"raw": True}),
}
TALKED: dict[str, tuple[str, ...]] = {
    "/v1/chat/completions": (
        *("model", "messages", "stream", "stream_options", "tools", "tool_choice"),
        *("parallel_tool_calls", "prediction", "reasoning_effort", "include_reasoning"),
        *("add_generation_prompt", "continue_final_message", "chat_template_kwargs"),
    ),
    "/v1/completions": ("model", "prompt", "stream", "stream_options"),
    "/v1/messages": (
        *("model", "messages", "stream", "tools", "tool_choice", "thinking"),
        *("output_config", "output_format"),
    ),
    "/v1/responses": (
        *("model", "input", "stream", "stream_options", "tools", "tool_choice", "store"),
        *("parallel_tool_calls", "background", "include", "metadata", "reasoning", "text"),
        *("previous_response_id", "truncation", "top_logprobs"),
    ),
    "/api/chat": ("model", "messages", "options", "stream", "think", "tools"),
    "/api/generate": ("model", "prompt", "options", "stream", "think", "images"),
}
"""Fields that every request here has, or that the official clients try (tests/live)."""
ENCODER = "all-minilm-l6-v2"
DIMENSIONS, LIMIT_TOKENS = 384, 256
LONG = "word " * (LIMIT_TOKENS + 50)
EMBEDDINGS: dict[str, tuple[Body, ...]] = {
    "/v1/embeddings": (
        *({"input": one} for one in (["a"] * 2048, [[101, 7592, 102], [30_521]], [101, 102])),
        {"dimensions": DIMENSIONS, "encoding_format": "base64", "user": "reader-7"},
        *({"input": LONG, "truncate_prompt_tokens": one} for one in (-1, 3, LIMIT_TOKENS)),
    ),
    "/api/embed": (
        {"input": ["One text.", "Another one."], "truncate": False},
        {"input": LONG, "truncate": True, "dimensions": DIMENSIONS},
    ),
    "/api/embeddings": ({"prompt": "Hello"},),
}
OPENAPI = document()


@pytest.mark.parametrize("path", BODIES | EMBEDDINGS)
def test_every_honoured_field_is_tried(path: str) -> None:
    body = OPENAPI["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    honoured = _honoured(str(body["$ref"].rpartition("/")[2]))
    if "options" in honoured:
        honoured |= {f"options.{name}" for name in _honoured("POST_api_chat_options")}
    tried = {name for body in (BODIES | EMBEDDINGS)[path] for name in body}
    assert honoured == tried | {"model", *TALKED.get(path, ())}


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
    """A greedy request for a tale, with those fields. Ollama's options stand in an object of their
    own."""
    body: Body = {"model": MODEL, "temperature": 0, "max_tokens": ANSWER_TOKENS}
    turns = [{"role": "user", "content": TALE}]
    match path:
        case "/api/chat" | "/api/generate":
            options = {"temperature": 0, "num_predict": ANSWER_TOKENS}
            options |= {name[8:]: fields[name] for name in fields if name.startswith("options.")}
            body = {"model": MODEL, "stream": False, "options": options}
            body |= {"messages": turns} if path == "/api/chat" else {"prompt": TALE}
            return body | {name: fields[name] for name in fields if "options." not in name}
        case "/v1/completions":
            body["prompt"] = "Once upon a time"
        case "/v1/responses":
            body |= {"input": TALE, "store": False, "max_output_tokens": body.pop("max_tokens")}
        case _:
            body["messages"] = turns
    if "max_completion_tokens" in fields:
        del body["max_tokens"]
    return body | fields


def ask(client: httpx.Client, path: str, body: Body) -> Answer:
    response = client.post(path, json=body)
    assert response.status_code == 200, (body, response.text)
    answer = response.json()
    usage = answer.get("usage", answer)
    names = ("prompt_tokens", "completion_tokens")
    choices = []
    match path:
        case "/v1/chat/completions" | "/v1/completions":
            for part in answer["choices"]:
                text = part["message"]["content"] if "message" in part else part["text"]
                logprobs = (part.get("logprobs") or {}).get("content") or []
                token_ids = part.get("token_ids") or []
                choices.append(Choice(text or "", part["finish_reason"], logprobs, token_ids))
            assert [part["index"] for part in answer["choices"]] == [*range(len(choices))]
        case "/v1/messages":
            texts = [block["text"] for block in answer["content"] if block["type"] == "text"]
            choices, names = [Choice("".join(texts), answer["stop_reason"])], OTHER_NAMES
        case "/v1/responses":
            parts = [part for item in answer["output"] for part in item.get("content", ())]
            texts = [part["text"] for part in parts if part["type"] == "output_text"]
            choices, names = [Choice("".join(texts), answer["status"])], OTHER_NAMES
        case _:
            text = answer["message"]["content"] if "message" in answer else answer["response"]
            logprobs = answer.get("logprobs") or []
            choices, names = [Choice(text, answer["done_reason"], logprobs)], OLLAMAS_NAMES
    return Answer(choices, usage[names[0]], usage[names[1]])


OTHER_NAMES = ("input_tokens", "output_tokens")
OLLAMAS_NAMES = ("prompt_eval_count", "eval_count")
LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens", "num_predict")
TOLERANCE = 2e-3
"""The tolerance of log probabilities: they are returned in five digits or so."""


def check(asked: Body, answer: Answer) -> None:
    body = asked | asked.get("options", {})
    most = next(body[name] for name in LIMITS if name in body)
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
        for stop in body.get("stop") or body.get("stop_sequences") or []:
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
    if asked_format := body.get("format"):
        schema = {"type": "object"} if asked_format == "json" else asked_format
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


SLOW = [pytest.mark.slow, pytest.mark.limit_s(900)]


@pytest.mark.parametrize("path", [pytest.param(path, marks=SLOW) for path in BODIES])
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


@pytest.mark.parametrize("path", [pytest.param(path, marks=SLOW) for path in EMBEDDINGS])
def test_embeddings_are_as_asked_for(
    server: Serve, client: httpx.Client, embedding_model_dir: Path, path: str
) -> None:
    if client.get(f"/v1/models/{ENCODER}").status_code != 200:
        create_model(server, name=ENCODER, source=SOURCE, revision=REVISION, sha256=SHA256)
    given = "prompt" if path == "/api/embeddings" else "input"
    plain = {"model": ENCODER, given: "A lighthouse keeper in a storm."}

    def embedded(body: Body) -> np.ndarray:
        response = client.post(path, json=body)
        assert response.status_code == 200, response.text[:200]
        answer, asked = response.json(), body[given]
        if path == "/v1/embeddings":
            assert [one["index"] for one in answer["data"]] == [*range(len(answer["data"]))]
            found = np.array([_floats(one["embedding"]) for one in answer["data"]])
        else:
            found = np.array(answer.get("embeddings") or [answer["embedding"]], np.float32)
        is_many = isinstance(asked, list) and not isinstance(asked[0], int)
        assert found.shape == (len(asked) if is_many else 1, DIMENSIONS)
        assert np.allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-3)
        counted = answer.get("prompt_eval_count") or answer.get("usage", {}).get("prompt_tokens")
        kept = body.get("truncate_prompt_tokens", -1)
        assert asked != LONG or counted == (LIMIT_TOKENS if kept == -1 else kept)
        return found

    alone = embedded(plain)

    def one(fields: Body) -> None:
        embedded(plain | fields)
        assert np.allclose(alone, embedded(plain), atol=1e-5), f"a neighbour of {fields}"

    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        list(pool.map(one, EMBEDDINGS[path]))


def _floats(embedding: list[float] | str) -> np.ndarray:
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding), np.float32)
    return np.array(embedding, np.float32)
