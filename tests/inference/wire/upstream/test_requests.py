"""Requests as the body that an upstream of each dialect is sent."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import ollama
import pytest

from fleet.upstreams import untranslated_defaults
from inference.protocol.events import TokensCounted
from inference.protocol.generation import (
    DEFAULTS_OF_MODELS,
    ChatInput,
    ChatMessage,
    EmbeddingRequest,
    GenerationRequest,
    SamplingOptions,
    TextInput,
    TokenCountRequest,
    TokensInput,
    ToolCall,
)
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.anthropic.messages import INTERLEAVED_BETA
from inference.wire.dialect import RequestContext
from inference.wire.errors import ApiError, UnsupportedParameterError
from inference.wire.images import ImageFile, base64_image
from inference.wire.ollama import chat as ollama_chat
from inference.wire.openai.chat import parse
from inference.wire.upstream import Sending
from inference.wire.upstream.answer_events import UpstreamFaultError
from inference.wire.upstream.exchanges import exchange_of, is_forwarded
from inference.wire.upstream.messages_request import FALLBACK_MAX_TOKENS
from tests.cases import each_case
from tests.inference.image_files import base64_of, png
from tests.inference.wire.answers import events_read
from tests.inference.wire.golden import Case, cases

TURNS = [{"role": "user", "content": "hi"}]
PNG = base64_of(png(32, 32))
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
TOOLS = {"tools": [{"type": "function", "function": {**TOOL, "strict": True}}]}
TOOLS_OF_ANTHROPIC: dict[str, Any] = {
    "tools": [{"name": "f", "input_schema": TOOL["parameters"], "strict": True}]
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
NAMED = {"name": "answer", "schema": {"type": "object"}, "strict": True}
STRICT = {"type": "json_schema", "json_schema": NAMED}
BETAS = RequestContext(headers={"anthropic-beta": INTERLEAVED_BETA})
OPENAI, ANTHROPIC, OLLAMA = "openai", "anthropic", "ollama"


def sent(dialect: str, request: GenerationRequest, **limits: int | None) -> dict[str, Any]:
    chat = request.input
    images = chat.images if isinstance(chat, ChatInput) else []
    files = {image.digest: image for image in images if isinstance(image, ImageFile)}
    sending = Sending(model="m", images=files, **limits)
    found: dict[str, Any] = json.loads(exchange_of(dialect, request, sending).body)
    return found


def openai_sent(dialect: str, **fields: Any) -> dict[str, Any]:
    """What an OpenAI client's request becomes."""
    body = {"model": "far", "messages": TURNS, **fields}
    return sent(dialect, parse(json.dumps(body).encode()).generation)


def anthropic_sent(dialect: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "far", "max_tokens": 50_000, "messages": TURNS, **fields}
    return sent(dialect, anthropic_messages.parse(json.dumps(body).encode()).generation)


def turn_sent(dialect: str, turn: ChatMessage) -> dict[str, Any]:
    return sent(dialect, GenerationRequest(model="far", input=ChatInput(messages=[turn])))


@each_case("case", cases("anthropic_messages", "ollama_chat"), ids=str)
def test_what_came_in_its_dialect_is_sent_as_it_came(case: Case) -> None:
    is_ollamas = case.dialect == "ollama_chat"
    read = ollama_chat.parse if is_ollamas else anthropic_messages.parse
    try:
        asked = read(case.given("request"), BETAS).generation
    except ApiError:
        return
    if not isinstance(asked, GenerationRequest):
        return  # it only loads a model
    dialect = OLLAMA if is_ollamas else ANTHROPIC
    body = json.dumps(sent(dialect, asked, max_tokens=asked.sampling.max_tokens)).encode()
    assert meaning(read(body, BETAS).generation) == meaning(asked)


def meaning(request: Any) -> Any:
    """Returns the request without what stays here: the user's name, earlier thoughts, where things
    stood, and what an answer looks like."""
    made = msgspec.to_builtins(msgspec.structs.replace(request, model="", end_user=""))
    if request.output_format is not None:
        del made["output_format"]["path"]
    chat = made["input"]
    for tool in chat.get("tools", []):
        del tool["path"]
    for message in chat["messages"]:
        message.pop("reasoning", None)
        for part in message.get("parts", []):
            if isinstance(part, dict):
                del part["path"]
    chat.pop("shows_reasoning", None)
    if made["sampling"].get("top_k") == 0:
        del made["sampling"]["top_k"]  # it is off
    return made


IMAGE: dict[str, Any] = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
CALL = {"id": "call.1", "type": "function", "function": {"name": "f", "arguments": '{"a":"b"}'}}
CHAT = [
    {"role": "system", "content": "be short"},
    {"role": "user", "content": [{"type": "text", "text": "look"}, IMAGE]},
    {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "c2"}]},
    {"role": "tool", "tool_call_id": "call.1", "content": "rain"},
    {"role": "tool", "tool_call_id": "c2", "content": ""},
    {"role": "system", "content": "and kind"},
    {"role": "user", "content": "so?"},
]


def test_turns_of_other_dialects_as_anthropics() -> None:
    body = openai_sent(ANTHROPIC, messages=CHAT, **TOOLS)
    assert body["system"] == "be short\n\nand kind"
    first, second, third = body["messages"]
    source = {"type": "base64", "media_type": "image/png", "data": PNG}
    look = {"type": "text", "text": "look"}
    assert first["content"] == [look, {"type": "image", "source": source}]
    used = {"type": "tool_use", "name": "f", "input": {"a": "b"}}
    assert second["content"] == [{**used, "id": "call_1"}, {**used, "id": "c2"}]
    rain = [{"type": "text", "text": "rain"}]
    assert third["content"] == [
        {"type": "tool_result", "tool_use_id": "call_1", "content": rain},
        {"type": "tool_result", "tool_use_id": "c2"},
        {"type": "text", "text": "so?"},
    ]
    assert body["tools"] == TOOLS_OF_ANTHROPIC["tools"]
    assert body["tool_choice"] == {"type": "auto"}
    assert body["max_tokens"] == FALLBACK_MAX_TOKENS


def test_turns_of_other_dialects_as_ollamas() -> None:
    body = openai_sent(OLLAMA, messages=CHAT, **TOOLS)
    used = {"function": {"name": "f", "arguments": {"a": "b"}}}
    calls = [{"id": "call.1", **used}, {"id": "c2", **used}]
    assert body["messages"] == [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "look", "images": [PNG]},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "rain", "tool_name": "f", "tool_call_id": "call.1"},
        {"role": "tool", "content": "", "tool_name": "f", "tool_call_id": "c2"},
        {"role": "system", "content": "and kind"},
        {"role": "user", "content": "so?"},
    ]
    assert body["tools"] == [{"type": "function", "function": TOOL}]
    ollama._types.ChatRequest.model_validate(body)
    assert "tools" not in openai_sent(OLLAMA, **TOOLS, tool_choice="none")


def test_turns_of_openais_dialect_are_sent_as_they_came() -> None:
    low = {**IMAGE, "image_url": {**IMAGE["image_url"], "detail": "low"}}
    seen = {"role": "user", "name": "ann", "content": [{"type": "text", "text": "look"}, low]}
    forced = {"tool_choice": {"type": "function", "function": {"name": "f"}}}
    for choice in (forced, {"tool_choice": "none"}, {"parallel_tool_calls": False}):
        body = openai_sent(OPENAI, messages=[seen, *CHAT], **TOOLS, **choice)
        assert body["messages"] == [seen, *CHAT]
        assert {name: body[name] for name in ("tools", *choice)} == TOOLS | choice
    assert "parallel_tool_calls" not in openai_sent(OPENAI, **TOOLS)
    assert openai_sent(OPENAI, response_format=STRICT)["response_format"] == STRICT
    start = {"role": "assistant", "content": "So"}  # it is continued
    body = anthropic_sent(OPENAI, messages=[*TURNS, start])
    assert (body["messages"][-1], body["continue_final_message"]) == (start, True)


def test_a_prompt_without_turns_is_completed_or_refused() -> None:
    once, two = TextInput(texts=["Once"]), TextInput(texts=["a", "b"])
    ids = TokensInput(prompts=[[1]])
    for dialect, given, path, prompt in (
        (OPENAI, two, "/completions", ["a", "b"]),
        (OPENAI, ids, "/completions", [[1]]),
        (OLLAMA, once, "/api/generate", "Once"),
    ):
        request = GenerationRequest(model="far", input=given, stop=["."])
        assert exchange_of(dialect, request, Sending(model="m")).path == path
        assert sent(dialect, request)["prompt"] == prompt
    body = sent(OLLAMA, request)
    assert (body["raw"], body["options"]) == (True, {"stop": ["."]})
    shown = SamplingOptions(top_logprobs=1)
    for dialect, given in ((OLLAMA, two), (OLLAMA, ids), (ANTHROPIC, once)):
        with pytest.raises(UnsupportedParameterError):
            sent(dialect, GenerationRequest(model="far", input=given))
    for dialect in (OPENAI, OLLAMA):
        with pytest.raises(UnsupportedParameterError, match="logprobs"):
            sent(dialect, GenerationRequest(model="far", input=once, sampling=shown))


def test_the_bound_of_an_answer_and_of_a_prompt() -> None:
    """Newer models have a newer bound; Ollama cuts no prompt and gets the catalogue's context."""
    request = parse(json.dumps({"model": "far", "messages": TURNS}).encode()).generation
    for host, name in (
        *((one, "max_completion_tokens") for one in ("api.openai.com", "x.openai.azure.com")),
        ("xapi.openai.com.box", "max_tokens"),
    ):
        body = exchange_of(OPENAI, request, Sending(model="m", host=host, max_tokens=9)).body
        assert json.loads(body)[name] == 9
    body = sent(OLLAMA, request, max_tokens=9, context_tokens=32_768)
    assert (body["truncate"], body["shift"]) == (False, False)
    assert body["options"] == {"num_predict": 9, "num_ctx": 32_768}


def test_tokens_are_counted_by_a_prompt_alone() -> None:
    chat = ChatInput(messages=[ChatMessage(role="user", content="hi")])
    request = TokenCountRequest(model="far", input=chat)
    for dialect, path, answer in (
        (OPENAI, "/tokenize", b'{"count":7}'),
        (ANTHROPIC, "/v1/messages/count_tokens", b'{"input_tokens":7}'),
    ):
        exchange = exchange_of(dialect, request, Sending(model="m", max_tokens=9))
        assert (exchange.path, exchange.is_unversioned) == (path, dialect == OPENAI)
        assert json.loads(exchange.body).keys() == {"model", "messages"}
        (counted,) = events_read(exchange.reader_of, [answer], num_choices=0)
        assert counted == TokensCounted(request_id="r", prompt_tokens=7)
        with pytest.raises(UpstreamFaultError):
            events_read(exchange.reader_of, [b'{"tokens":[1]}'], num_choices=0)
    embedding = EmbeddingRequest(model="far", input=TextInput(texts=["a"]))
    forwarded = [
        [is_forwarded(dialect, one) for dialect in (OPENAI, ANTHROPIC, OLLAMA)]
        for one in (request, embedding, GenerationRequest(model="far", input=chat))
    ]
    assert forwarded == [[True, True, False], [True, False, True], [True, True, True]]


ADAPTIVE, DISABLED, SUMMARIZED = (
    {"type": "adaptive"},
    {"type": "disabled"},
    {"display": "summarized"},
)
HIGH = {"reasoning_effort": "high"}
NUMBERS = {"temperature": 0.25, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "seed": 3}
UNSET = {"presence_penalty": 0, "min_p": 0, "repetition_penalty": 1, "n": 1, "logprobs": False}
JSON_SCHEMA = {"type": "json_schema", "schema": {"type": "object"}}


@each_case(
    ("dialect", "fields", "expected"),
    [
        *[
            (OPENAI, fields, fields)
            for fields in (
                NUMBERS | {"repetition_penalty": 1.5, "presence_penalty": 1.0, "n": 2},
                {"frequency_penalty": -1.0, "stop": ["a", "b"], "logit_bias": {"5": -1.0}},
                {"logprobs": True, "top_logprobs": 2, "min_tokens": 2, "stop_token_ids": [4]},
                {"ignore_eos": True, "chat_template_kwargs": {"x": 1}, "reasoning_effort": "high"},
                {"reasoning_effort": "none", "response_format": {"type": "json_object"}},
                {"add_generation_prompt": False},
            )
        ],
        (OPENAI, {"reasoning_effort": "minimal"}, {"reasoning_effort": "none"}),
        (
            ANTHROPIC,
            {"temperature": 0.25, "top_p": 0.5, "top_k": 7, "stop": ["x"]},
            {"temperature": 0.25, "top_p": 0.5, "top_k": 7, "stop_sequences": ["x"]},
        ),
        *(
            (ANTHROPIC, TOOLS | choice, TOOLS_OF_ANTHROPIC | {"tool_choice": expected})
            for choice, expected in (
                ({"tool_choice": "none"}, {"type": "none"}),
                ({"tool_choice": "required"}, {"type": "any"}),
                (
                    {"parallel_tool_calls": False},
                    {"type": "auto", "disable_parallel_tool_use": True},
                ),
                (
                    {"tool_choice": {"type": "function", "function": {"name": "f"}}},
                    {"type": "tool", "name": "f"},
                ),
            )
        ),
        (ANTHROPIC, UNSET | {"frequency_penalty": 0.0, "top_k": 0}, {}),
        (ANTHROPIC, HIGH, {"thinking": ADAPTIVE, "output_config": {"effort": "high"}}),
        (ANTHROPIC, {"reasoning_effort": "none"}, {"thinking": DISABLED}),
        (
            ANTHROPIC,
            HIGH | {"include_reasoning": True},
            {"thinking": ADAPTIVE | SUMMARIZED, "output_config": {"effort": "high"}},
        ),
        (
            ANTHROPIC,
            {"chat_template_kwargs": {"enable_thinking": False}, "response_format": SCHEMA},
            {"thinking": DISABLED, "output_config": {"format": JSON_SCHEMA}},
        ),
        (
            OLLAMA,
            NUMBERS | {"repetition_penalty": 1.5, "stop": ["x"]},
            {"options": NUMBERS | {"repeat_penalty": 1.5, "repeat_last_n": -1, "stop": ["x"]}},
        ),
        *[
            (OLLAMA, one, {"options": one | {"repeat_last_n": -1}})
            for one in ({"presence_penalty": 1.0}, {"frequency_penalty": -1.0})
        ],
        (OLLAMA, {"logprobs": True, "top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        (OLLAMA, HIGH, {"think": "high"}),
        (OLLAMA, {"reasoning_effort": "none"}, {"think": False}),
        (OLLAMA, {"chat_template_kwargs": {"enable_thinking": True}}, {"think": True}),
        (OLLAMA, {"response_format": {"type": "json_object"}}, {"format": "json"}),
        (OLLAMA, {"response_format": SCHEMA}, {"format": {"type": "object"}}),
    ],
)
def test_fields(dialect: str, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    plain, body = openai_sent(dialect), openai_sent(dialect, **fields)
    added = {name: body[name] for name in body if name not in plain}
    assert added == expected


def test_a_budget_of_thinking_is_an_effort_or_thinking_without_a_bound() -> None:
    for budget, effort in ((2_048, "low"), (8_192, "medium"), (8_193, "high")):
        thinking = {"type": "enabled", "budget_tokens": budget}
        assert anthropic_sent(OPENAI, thinking=thinking)["reasoning_effort"] == effort
        assert anthropic_sent(OLLAMA, thinking=thinking)["think"] is True
    assert "reasoning_effort" not in anthropic_sent(OPENAI)
    assert "think" not in anthropic_sent(OLLAMA, output_config={"effort": "high"})


@each_case(
    ("dialect", "fields", "param"),
    [
        (ANTHROPIC, {"n": 2}, "n"),
        (ANTHROPIC, {"seed": 0}, "seed"),
        (ANTHROPIC, {"temperature": 1.5}, "temperature"),
        (ANTHROPIC, {"logprobs": True}, "top_logprobs"),
        (ANTHROPIC, {"response_format": {"type": "json_object"}}, "response_format"),
        (OLLAMA, {"n": 2}, "n"),
        (OLLAMA, {"logit_bias": {"5": 1.0}}, "logit_bias"),
        (OLLAMA, {**TOOLS, "tool_choice": "required"}, "tool_choice"),
        (OLLAMA, {**TOOLS, "parallel_tool_calls": False}, "parallel_tool_calls"),
        *[
            (dialect, fields, param)
            for dialect in (ANTHROPIC, OLLAMA)
            for fields, param in (
                ({"guided_regex": "a+"}, "guided_regex"),
                ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs"),
                ({"add_generation_prompt": False}, "add_generation_prompt"),
            )
        ],
    ],
)
def test_what_has_no_word_is_refused_by_name(
    dialect: str, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(UnsupportedParameterError) as caught:
        openai_sent(dialect, **fields)
    assert (caught.value.param or "").startswith(param)


@each_case("dialect", [OPENAI, ANTHROPIC, OLLAMA])
@each_case("name", [name for name in SamplingOptions.__struct_fields__ if name != "max_tokens"])
def test_every_sampling_option_is_translated_or_refused(dialect: str, name: str) -> None:
    """But for ``max_tokens``: what bounds an answer is an argument."""
    others = {"logit_bias": {1: 1.0}, "stop_token_ids": [1], "ignore_eos": True}
    numbers = {"temperature": 0.5, "top_p": 0.5, "repetition_penalty": 1.5}
    value: Any = (numbers | others).get(name, 1)
    chat = ChatInput(messages=[ChatMessage(role="user", content="hi")])
    options = SamplingOptions(**{name: value})
    is_refused = False
    try:
        body = sent(dialect, GenerationRequest(model="far", input=chat, sampling=options))
    except UnsupportedParameterError as error:
        is_refused = error.param == name
        assert is_refused, error.param
        assert dialect != OLLAMA or name not in DEFAULTS_OF_MODELS or name == "repetition_window"
    else:
        assert body != sent(dialect, GenerationRequest(model="far", input=chat))
    if dialect == ANTHROPIC and name in DEFAULTS_OF_MODELS:
        unfit = untranslated_defaults("anthropic", {name: value})
        assert unfit == ([name] if is_refused else []), "of defaults the same are left out"


def test_a_call_of_any_arguments_is_sent_as_an_object_and_a_turn_that_is_none_refused() -> None:
    large = {"n": 2**70}
    for arguments, expected in (
        *(("{", {"invalid_arguments": "{"}), (" ", {}), (json.dumps(large), large)),
    ):
        call = ToolCall(id="c", name="f", arguments=arguments)
        turn = ChatMessage(role="assistant", tool_calls=[call])
        (message,) = turn_sent(OLLAMA, turn)["messages"]
        assert message["tool_calls"][0]["function"]["arguments"] == expected
        (message,) = turn_sent(ANTHROPIC, turn)["messages"]
        assert message["content"][0]["input"] == expected
    with pytest.raises(ApiError) as caught:
        turn_sent(ANTHROPIC, ChatMessage(role="tool", content="x"))  # a result of no call
    assert (caught.value.status, caught.value.param) == (400, "messages")
    image = msgspec.structs.replace(base64_image(PNG, "p"), media_type="image/bmp")
    with pytest.raises(UnsupportedParameterError, match="image/bmp"):
        turn_sent(ANTHROPIC, ChatMessage(role="user", parts=[image]))
