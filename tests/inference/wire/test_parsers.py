"""What the parsers refuse, whole bodies and single fields, and what they take all the same."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import orjson
import pytest

from inference.wire import embeddings, fields
from inference.wire.anthropic import batches as anthropic_batches
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.errors import ApiError, TooManyValuesError
from inference.wire.ollama import chat as ollama_chat
from inference.wire.openai import chat as openai_chat
from inference.wire.openai import completions as openai_completions
from inference.wire.responses import request as openai_responses
from tests.cases import each_case

PARSERS = [
    anthropic_messages.parse,
    openai_chat.parse,
    openai_completions.parse,
    openai_responses.parse,
]
MESSAGES = [{"role": "user", "content": "Hi"}]
GOOD = {"model": "tiny", "messages": MESSAGES}


def parsed(parse: Any, **body: Any) -> Any:
    return parse(json.dumps({"model": "tiny", **body}).encode()).generation


def refusal(parse: Any, body: bytes) -> ApiError:
    with pytest.raises(ApiError) as refused:
        parse(body)
    assert refused.value.status == 400
    return refused.value


def nested(head: bytes, opening: bytes, end: bytes) -> bytes:
    return head + opening * 900 + end * 900 + b"}"


CHAT_HEAD = b'{"model":"m","messages":[{"role":"user","content":"x"}],"chat_template_kwargs":'


@each_case(
    "body",
    [
        *(b"", b"{", b"[]", b"7", b"null", b'"x"', b"\xff\xfe", b"{}", b'{"model":"m"}'),
        b'{"a":' * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        nested(b'{"model":"m","prompt":', b"[", b"]"),
        nested(b'{"model":"m","messages":', b"[", b"]"),
        nested(CHAT_HEAD, b'{"a":', b"}"),
    ],
)
@each_case("parse", PARSERS)
def test_what_is_no_object_or_nested_deeply_is_refused(parse: Any, body: bytes) -> None:
    refusal(parse, body)


SOME_TOOLS = {"mode": "none", "tools": []}
MANY_STOPS = [f"s{number}" for number in range(65)]
PENALTY = [-2.01, 2.01, "0.5", True]
SAMPLING: dict[str, list[Any]] = {
    "temperature": [1e308, -0.01, 2.01, True],
    "top_p": [-0.01, 1.01],
    "min_p": [-0.01, 1.01],
    "top_k": [-2, 1.5, 2**63],
    "seed": [2**64, 2**63, -(2**63) - 1, 1.5, "7"],
    "frequency_penalty": PENALTY,
    "presence_penalty": PENALTY,
    "stop": [["a", ""], MANY_STOPS, [1]],
}
OPENAI = SAMPLING | {
    "repetition_penalty": [0, -1, 10.01],
    "max_tokens": [-1, 10**30, 1.5],
    "min_tokens": [-1],
    "ignore_eos": ["yes"],
    "stop_token_ids": [[-1], [True], ["a"]],
    "logit_bias": [{"-1": 0}, {"\u0661": 0}, {"99999999999": 0}, {"260": 101}, {"x": 1}, [1]],
    "model": ["", "x" * 257],
    "stream": [1, "true"],
    "stream_options": [[]],
    "user": [7, ["a"]],
    "n": [0, 129, 1.5],
    "guided_choice": [[], [1], "yes"],
    "guided_regex": [3],
    "guided_json": [3],
    "guided_grammar": [3],
    "structured_outputs": [{}, {"choice": ["a"], "regex": "b"}, {"unknown": 1}],
    "response_format": [
        *("json_object", {}, {"type": "yaml"}, {"type": "json_schema"}),
        {"type": "json_schema", "json_schema": {"name": "a b"}},
    ],
    "return_token_ids": ["yes"],
    "prompt_logprobs": [-2, 21],
}
CHAT = {
    "max_tokens": [0],
    "max_completion_tokens": [0, -1],
    "metadata": [{"k": 1}, {str(n): "v" for n in range(17)}],
    "logprobs": ["yes"],
    "top_logprobs": [-1, 21],
    "chat_template_kwargs": [[]],
    "tools": [
        *({}, [7], [{}], [{"type": 7, "function": {"name": "f"}}]),
        [{"type": "function", "function": {"name": "f" * 129}}],
        [{"type": "function", "function": {"name": "f", "strict": "yes"}}],
    ],
    "tool_choice": [
        *(7, {}, {"type": "allowed_tools"}),
        {"type": "allowed_tools", "allowed_tools": SOME_TOOLS},
    ],
    "reasoning_effort": [1],
    "include_reasoning": [1],
    "parallel_tool_calls": ["no"],
    "safety_identifier": [3],
}
MESSAGE = {
    "max_tokens": [0, -1, 1.5],
    "temperature": [-0.01, 1.01],
    "top_p": [-0.01, 1.01],
    "top_k": [-2],
    "stop_sequences": [MANY_STOPS, [1]],
    "system": [3],
    "metadata": [{"user_id": 3}, "reader"],
}
RESPONSE = {name: SAMPLING[name] for name in SAMPLING if name not in ("min_p", "stop")} | {
    "max_output_tokens": [0, -1, 1.5],
    "instructions": [3],
    "user": [3],
}
OLLAMA = {"options.num_predict": [0, -3, 1.5, 2**31], "options.repeat_penalty": [0, 10.01]}
OLLAMA |= {f"options.{name}": values for name, values in SAMPLING.items() if name != "seed"}
OLLAMA |= {"format": ["yaml", 3], "logprobs": ["yes"], "top_logprobs": [-1, 21]}
VECTORS = {
    "input": ["", [], [""], ["a", ""], ["a"] * 2049, 3, [[]], [-1], [[101], "Hello"], [1.5]],
    "dimensions": [0, "384"],
    "encoding_format": ["hex", 3],
    "truncate_prompt_tokens": [-2, 0, "3"],
    "user": [3],
}
PROMPT = {"model": "tiny", "prompt": "Hi"}
OUTSIDE: list[tuple[Any, dict[str, Any], dict[str, list[Any]]]] = [
    (openai_chat.parse, GOOD, OPENAI | CHAT),
    (openai_completions.parse, PROMPT, OPENAI | {"logprobs": [-1, 21], "echo": ["yes"]}),
    (anthropic_messages.parse, GOOD | {"max_tokens": 9}, MESSAGE),
    (openai_responses.parse, {"model": "tiny", "input": "Hi"}, RESPONSE),
    (ollama_chat.parse, GOOD, OLLAMA),
    (ollama_chat.parse_generate, PROMPT, OLLAMA | {"system": [3], "raw": ["yes"]}),
    (embeddings.parse_openai, {"model": "tiny", "input": "Hi"}, VECTORS),
    (embeddings.parse_ollama, {"model": "tiny", "input": "Hi"}, {"truncate": ["yes"]}),
]


@each_case(
    ("parse", "good", "field", "value"),
    [
        (parse, good, field, value)
        for parse, good, table in OUTSIDE
        for field, values in table.items()
        for value in values
    ],
)
def test_what_is_outside_is_refused_by_name(
    parse: Any, good: dict[str, Any], field: str, value: Any
) -> None:
    group, _, name = field.rpartition(".")
    given = {group: {name: value}} if group else {field: value}
    refused = refusal(parse, json.dumps(good | given).encode())
    assert (refused.param or "").startswith(field), refused


def test_null_is_the_same_as_absent() -> None:
    message = GOOD | {"max_tokens": 9}
    for parse, names, good in (
        (openai_chat.parse, [*openai_chat.FIELDS, "of_another_server"], GOOD),
        (anthropic_messages.parse, anthropic_messages.FIELDS, message),
    ):
        assert parsed(parse, **dict.fromkeys(names) | good) == parsed(parse, **good)


def test_how_deep_a_schema_may_be() -> None:
    for depth in (96, 97, 900):
        schema: dict[str, Any] = {}
        for _ in range(depth - 1):
            schema = {"items": schema}
        tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
        format_ = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        for more in ({"tools": tools}, {"response_format": format_}):
            parse = openai_chat.parse if depth == 96 else partial(refusal, openai_chat.parse)
            assert parse(json.dumps({**GOOD, **more}).encode())


FUNCTION = {"name": "f", "arguments": "{}"}
CALLS = [{"id": "c", "type": "function", "function": FUNCTION}]
EMPTY = {"role": "user", "content": []}
THOUGHT = {"role": "assistant", "content": "So", "reasoning": "Hm", "reasoning_content": "Hm"}
CONTINUED = {"continue_final_message": True}
NAMELESS = {"response_format": {"type": "json_schema", "json_schema": {}}}
BATCH = {"requests": [{"custom_id": "a", "params": {}}]}


@each_case(
    ("parse", "fields", "param"),
    [
        *(
            (
                openai_chat.parse,
                {"messages": [*MESSAGES, EMPTY | {"role": role}]},
                "messages[1].content",
            )
            for role in ("user", "system", "developer", "assistant")
        ),
        (openai_chat.parse, GOOD | NAMELESS, "response_format.json_schema.name"),
        (openai_chat.parse, CONTINUED | {"messages": [*MESSAGES, THOUGHT]}, "messages"),
        (openai_chat.parse, CONTINUED | {"messages": MESSAGES}, "messages"),
        (openai_responses.parse, {"input": [EMPTY]}, "input[0].content"),
        (anthropic_messages.parse, {"max_tokens": 5, "messages": [EMPTY]}, "messages[0].content"),
        (lambda body: [*anthropic_batches.parse(body)], BATCH | {"priority": 1}, "priority"),
        *(
            (openai_completions.parse, {"prompt": [*range(1000), wrong]}, "prompt[1000]")
            for wrong in (True, -1, 2**31, 1.5, "7", None)
        ),
    ],
)
def test_what_is_refused_by_its_place(parse: Any, fields: dict[str, Any], param: str) -> None:
    model = {} if "requests" in fields else {"model": "m"}
    assert refusal(parse, orjson.dumps({**model, **fields})).param == param


def test_calls_and_their_results_may_be_empty() -> None:
    calling = {"role": "assistant", "content": [], "tool_calls": CALLS}
    result = {"role": "tool", "tool_call_id": "c", "content": []}
    turns = [*MESSAGES, THOUGHT, calling, result, EMPTY]  # the last is of Zed
    assert parsed(openai_chat.parse, messages=turns)


@each_case("piece_bytes", [7, 1024, fields.PIECE_BYTES])
def test_the_bound_on_values_is_exact(piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(fields, "MAX_VALUES", 50)
    quoted = 'a "quoted" [word], {\\ and "another" \\'
    for values, is_refused in (
        ([quoted] * 49, False),
        ([quoted] * 50, True),
        ([[], {}] * 24, False),
        ([[], {}] * 24 + [[]], True),
        ([12345] * 1000, False),
    ):
        body = json.dumps({"input": values}).encode()
        if is_refused:
            with pytest.raises(TooManyValuesError, match="50"):
                fields.read_json_object(body)
        else:
            assert fields.read_json_object(body) == json.loads(body)
    many = json.dumps({"input": json.dumps([{"a": "b\\", "c": []}] * 60)})
    assert fields.read_json_object(many.encode()) == json.loads(many), "a long text is one value"


@each_case("parse", [openai_chat.parse, openai_responses.parse])
def test_too_many_messages_are_not_decoded(parse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields.orjson, "loads", None)
    most = fields.MAX_VALUES // 4 + 1
    body = b'{"messages":[' + b'{"role":"user","content":"Hi"},' * most + b"{}]}"
    assert refusal(parse, body).code == "too_many_values"
