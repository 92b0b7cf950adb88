"""Each field that an endpoint honours: its least, usual and greatest value, and one step outside.

``inside`` are accepted and held to the rules of ``answers``; ``outside`` are refused by name.
A field that needs others beside it has them in ``beside``. ``test_each_field`` compares the table
with the OpenAPI document: a field that is honoured and stands nowhere here fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ANSWER_TOKENS = 100
"""A penalty that breaks at the 65th token, or a mask that leaks, does not show in ten."""
SHORT_TOKENS = 48
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
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    inside: tuple[Any, ...]
    outside: tuple[Any, ...] = ()
    beside: dict[str, Any] = field(default_factory=dict)
    max_tokens: int = ANSWER_TOKENS


PENALTY = Field(inside=(-2, 0.5, 2), outside=(-2.01, 2.01, "0.5", True))
NAME = Field(inside=("", "reader-7"), outside=(3, ["reader-7"]), max_tokens=SHORT_TOKENS)
"""The end user's name, for the request's record alone."""
SAMPLED = {"temperature": 0.8, "seed": 7}
SAMPLING: dict[str, Field] = {
    "temperature": Field(inside=(0, 0.7, 2), outside=(-0.01, 2.01, "hot")),
    "top_p": Field(inside=(0.01, 0.9, 1), outside=(-0.01, 1.01), beside=SAMPLED),
    "top_k": Field(inside=(-1, 0, 1, 40, 49_152), outside=(-2, 1.5), beside=SAMPLED),
    "min_p": Field(inside=(0, 0.1, 1), outside=(-0.01, 1.01), beside=SAMPLED),
    "seed": Field(
        inside=(-(2**63), -1, 0, 2**63 - 1),
        outside=(2**64, 1.5, "7"),
        beside={"temperature": 0.8},
        max_tokens=SHORT_TOKENS,
    ),
    "frequency_penalty": PENALTY,
    "presence_penalty": PENALTY,
    "repetition_penalty": Field(inside=(0.01, 1, 1.2, 10), outside=(0, -1, 10.01)),
    "logit_bias": Field(
        inside=({}, {"0": -100}, {"260": -100}, {"49151": 5}),
        outside=({"49152": 1}, {"-1": 1}, {"260": 101}, {"x": 1}, [1]),
        max_tokens=SHORT_TOKENS,
    ),
    "min_tokens": Field(inside=(0, 20, ANSWER_TOKENS), outside=(-1, ANSWER_TOKENS + 1)),
    "ignore_eos": Field(inside=(True, False), outside=("yes",)),
    "stop": Field(
        inside=(["zzz"], [" the"], "\n", [f"s{number}" for number in range(64)]),
        outside=([f"s{number}" for number in range(65)], [1]),
    ),
    "stop_token_ids": Field(inside=([], [28], [0, 49_151]), outside=([49_152], [-1], ["a"])),
    "n": Field(inside=(1, 2, 8), outside=(0, 129, 1.5), max_tokens=SHORT_TOKENS),
    "guided_choice": Field(inside=(["yes", "no"],), outside=([], [1], "yes")),
    "guided_regex": Field(inside=("[a-c]{3,9}",), outside=("[", 3)),
    "guided_json": Field(inside=(SCHEMA,), outside=({"type": "no type"}, 3)),
    "guided_grammar": Field(inside=('start: "a" "b"+ "c"',), outside=("start: (", 3)),
    "structured_outputs": Field(
        inside=({"choice": ["yes", "no"]}, {"json": SCHEMA}, {"regex": "[0-9]{4}"}),
        outside=({}, {"choice": ["a"], "regex": "b"}, {"unknown": 1}),
    ),
    "response_format": Field(
        inside=(
            {"type": "text"},
            {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}},
        ),
        outside=({"type": "yaml"}, {"type": "json_schema"}, "json"),
    ),
    "return_token_ids": Field(inside=(True, False), outside=("yes",)),
    "prompt_logprobs": Field(inside=(0, 5, 20), outside=(-2, 21), max_tokens=SHORT_TOKENS),
}
CHAT: dict[str, Field] = SAMPLING | {
    "max_tokens": Field(inside=(1, 64, 300), outside=(0, -1, 1.5, 10**9)),
    "max_completion_tokens": Field(inside=(1, 64), outside=(0, -1)),
    "logprobs": Field(inside=(True, False), outside=("yes",)),
    "top_logprobs": Field(
        inside=(0, 5, 20), outside=(-1, 21), beside={"logprobs": True}, max_tokens=SHORT_TOKENS
    ),
    "user": NAME,
    "safety_identifier": NAME,
}
COMPLETION: dict[str, Field] = SAMPLING | {
    "max_tokens": Field(inside=(1, 64, 300), outside=(-1, 1.5, 10**9)),
    "logprobs": Field(inside=(0, 5, 20), outside=(-1, 21), max_tokens=SHORT_TOKENS),
    "echo": Field(inside=(True, False), outside=("yes",), max_tokens=SHORT_TOKENS),
    "user": NAME,
}
MESSAGE: dict[str, Field] = {
    "max_tokens": Field(inside=(1, 64, ANSWER_TOKENS), outside=(0, -1, 1.5)),
    "temperature": Field(inside=(0, 0.7, 1), outside=(-0.01, 1.01)),
    "top_p": Field(inside=(0.01, 0.9, 1), outside=(-0.01, 1.01), beside={"temperature": 0.8}),
    "top_k": Field(inside=(0, 1, 40), outside=(-2,), beside={"temperature": 0.8}),
    "stop_sequences": Field(
        inside=(["zzz"], [" the"]), outside=([f"s{number}" for number in range(65)], [1])
    ),
    "system": Field(inside=("Be brief.", [{"type": "text", "text": "Be brief."}]), outside=(3,)),
    "metadata": Field(
        inside=({}, {"user_id": "reader-7"}),
        outside=({"user_id": 3}, "reader-7"),
        max_tokens=SHORT_TOKENS,
    ),
}
RESPONSE: dict[str, Field] = {
    "max_output_tokens": Field(inside=(1, 64, ANSWER_TOKENS), outside=(0, -1, 1.5)),
    "temperature": Field(inside=(0, 0.7, 2), outside=(-0.01, 2.01)),
    "top_p": Field(inside=(0.01, 0.9, 1), outside=(-0.01, 1.01), beside={"temperature": 0.8}),
    "top_k": Field(inside=(-1, 0, 40), outside=(-2,), beside={"temperature": 0.8}),
    "seed": Field(inside=(0, 2**63 - 1), outside=(2**64,), beside={"temperature": 0.8}),
    "frequency_penalty": PENALTY,
    "presence_penalty": PENALTY,
    "instructions": Field(inside=("Be brief.",), outside=(3,)),
    "user": NAME,
    "safety_identifier": NAME,
}
OLLAMA: dict[str, Field] = {
    **{
        f"options.{name}": SAMPLING[name]
        for name in ("temperature", "top_p", "top_k", "min_p", "seed")
    },
    "options.frequency_penalty": PENALTY,
    "options.presence_penalty": PENALTY,
    "options.repeat_penalty": SAMPLING["repetition_penalty"],
    "options.stop": SAMPLING["stop"],
    "options.num_predict": Field(inside=(1, 64, ANSWER_TOKENS), outside=(0, -3, 1.5, 2**31)),
    "format": Field(inside=("json", SCHEMA), outside=("yaml", {"type": "no type"}, 3)),
    "logprobs": Field(inside=(True, False), outside=("yes",), max_tokens=SHORT_TOKENS),
    "top_logprobs": Field(
        inside=(0, 5, 20), outside=(-1, 21), beside={"logprobs": True}, max_tokens=SHORT_TOKENS
    ),
}
"""Options stand in an object of their own."""
OLLAMA_GENERATE: dict[str, Field] = OLLAMA | {
    "system": Field(inside=("Be brief.",), outside=(3,)),
    "raw": Field(inside=(True, False), outside=("yes",)),
}
ELSEWHERE: dict[str, frozenset[str]] = {
    "/v1/chat/completions": frozenset(
        {
            *("model", "messages", "stream", "stream_options", "tools", "tool_choice"),
            *("parallel_tool_calls", "prediction", "reasoning_effort", "include_reasoning"),
            *("add_generation_prompt", "continue_final_message", "chat_template_kwargs"),
        }
    ),
    "/v1/completions": frozenset({"model", "prompt", "stream", "stream_options"}),
    "/v1/messages": frozenset(
        {
            *("model", "messages", "stream", "tools", "tool_choice", "thinking"),
            *("output_config", "output_format"),
        }
    ),
    "/v1/responses": frozenset(
        {
            *("model", "input", "stream", "stream_options", "tools", "tool_choice", "store"),
            *("parallel_tool_calls", "background", "include", "metadata", "reasoning", "text"),
            *("previous_response_id", "truncation", "top_logprobs"),
        }
    ),
    "/api/chat": frozenset({"model", "messages", "options", "stream", "think", "tools"}),
    "/api/generate": frozenset({"model", "prompt", "options", "stream", "think", "images"}),
}
"""Fields that every request here has, or that the official clients try (tests/live)."""
FIELDS: dict[str, dict[str, Field]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/messages": MESSAGE,
    "/v1/responses": RESPONSE,
    "/api/chat": OLLAMA,
    "/api/generate": OLLAMA_GENERATE,
}
MAX_TOKENS_FIELD = {
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/messages": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/api/chat": "options.num_predict",
    "/api/generate": "options.num_predict",
}
IN_OPTIONS = "options."
COMMON_NAMES = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
"""What other dialects call two of Ollama's options."""


def plain_body(path: str, *, max_tokens: int) -> dict[str, Any]:
    """A greedy request for a tale; the fields that are tried come on top. Without the repetition
    penalty that the model has by itself, where the dialect has a field for that: what it does
    cannot be seen in log probabilities."""
    body: dict[str, Any] = {"model": "smollm2-135m-instruct", "temperature": 0}
    if "repetition_penalty" in FIELDS[path]:
        body["repetition_penalty"] = 1
    match path:
        case "/api/chat" | "/api/generate":
            return _ollama_body(path, max_tokens)
        case "/v1/completions":
            body["prompt"] = "Once upon a time"
        case "/v1/responses":
            body |= {"input": TALE, "store": False}
        case _:
            body["messages"] = [{"role": "user", "content": TALE}]
    return body | {MAX_TOKENS_FIELD[path]: max_tokens}


def _ollama_body(path: str, max_tokens: int) -> dict[str, Any]:
    asked = {"prompt": TALE} if path == "/api/generate" else {"messages": _USER_TURN}
    options = {"temperature": 0, "num_predict": max_tokens, "repeat_penalty": 1}
    return {"model": "smollm2-135m-instruct", "stream": False, "options": options, **asked}


_USER_TURN = [{"role": "user", "content": TALE}]


def as_asked(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The body with Ollama's options beside its other fields, by the names of other dialects."""
    if path not in ("/api/chat", "/api/generate"):
        return body
    options = {COMMON_NAMES.get(name, name): value for name, value in body["options"].items()}
    return {name: value for name, value in body.items() if name != "options"} | options


def body_of(path: str, name: str, value: Any) -> dict[str, Any]:
    tried = FIELDS[path][name]
    is_in_options = name.startswith(IN_OPTIONS)
    body = plain_body(path, max_tokens=tried.max_tokens)
    for field_name, given in (tried.beside | {name: value}).items():
        if is_in_options and field_name in SAMPLED:  # beside an option stand others
            body["options"][field_name] = given
        elif field_name.startswith(IN_OPTIONS):
            body["options"][field_name.removeprefix(IN_OPTIONS)] = given
        else:
            body[field_name] = given
    if name == "max_completion_tokens":
        del body["max_tokens"]
    return body


EMBEDDING_MODEL = "all-minilm-l6-v2"
DIMENSIONS = 384
LIMIT = 256
"""Tokens of an input."""
VOCAB_SIZE = 30_522
LONG = "word " * (LIMIT + 50)
MOST_INPUTS = 2048

DIMENSION = Field(inside=(DIMENSIONS,), outside=(0, DIMENSIONS // 2, DIMENSIONS + 1, "384"))
TEXTS = ("Hello", ["Hello"], ["One text.", "Another one."], ["a"] * MOST_INPUTS)
NO_TEXTS = ("", [], [""], ["a", ""], ["a"] * (MOST_INPUTS + 1), 3, LONG, ["a", LONG])
IDS = ([101, 7592, 102], [[101, 7592, 102], [101, 102]], [VOCAB_SIZE - 1])
NO_IDS = ([[]], [-1], [VOCAB_SIZE], [[101], "Hello"], [1.5])
EMBEDDING_FIELDS: dict[str, dict[str, Field]] = {
    "/v1/embeddings": {
        "input": Field(inside=(*TEXTS, *IDS), outside=(*NO_TEXTS, *NO_IDS)),
        "dimensions": DIMENSION,
        "encoding_format": Field(inside=("float", "base64"), outside=("hex", 3)),
        "truncate_prompt_tokens": Field(
            inside=(-1, 3, LIMIT), outside=(-2, 0, "3"), beside={"input": LONG}
        ),
        "user": Field(inside=("", "reader-7"), outside=(3,)),
    },
    "/api/embed": {
        "input": Field(inside=TEXTS, outside=NO_TEXTS, beside={"truncate": False}),
        "dimensions": DIMENSION,
        "truncate": Field(inside=(True,), outside=("yes",), beside={"input": LONG}),
    },
    "/api/embeddings": {"prompt": Field(inside=("Hello",), outside=(3,))},
}


def plain_embedding(path: str) -> dict[str, Any]:
    field = "prompt" if path == "/api/embeddings" else "input"
    return {"model": EMBEDDING_MODEL, field: "A lighthouse keeper in a storm."}


def embedding_of(path: str, name: str, value: Any) -> dict[str, Any]:
    return plain_embedding(path) | EMBEDDING_FIELDS[path][name].beside | {name: value}
