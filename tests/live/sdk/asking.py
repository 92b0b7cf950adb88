"""What the SDK tests ask for, and one way in each dialect to ask, streamed or not."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
from anthropic.types import Message
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of the next days.",
        "parameters": SCHEMA,
    },
}
WEATHER_IN_RESPONSES = {"type": "function", "name": "get_weather", "parameters": SCHEMA}
WEATHER_IN_MESSAGES = {"name": "get_weather", "input_schema": SCHEMA}
CLOCK = {
    "type": "function",
    "function": {
        "name": "get_time",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"type": "string"}},
            "required": ["zone"],
        },
    },
}
OSLO: dict[str, Any] = {"city": "Oslo", "days": 3}
OSLO_CALLS = {
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n'
    "</tool_call>",
    "qwen-coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
    "llama3": '{"name": "get_weather", "parameters": {"city": "Oslo", "days": 3}}',
    "mistral": '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}]',
}
"""The same call as each family of models writes it."""
CLOCK_CALL = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "CET"}}\n</tool_call>'


class Ask:
    """``ask("text", tools=…)``: a chat completion, folded by the SDK when it was streamed."""

    def __init__(self, client: openai.OpenAI, *, streams: bool) -> None:
        self.client = client
        self.streams = streams

    def __call__(self, text: str = "", *, model: str = "hermes", **fields: Any) -> ChatCompletion:
        body = {"model": model, "messages": [{"role": "user", "content": text}]} | fields
        create: Any = self.client.chat.completions.create
        if not self.streams:
            answer: ChatCompletion = create(**body)
            return answer
        state = ChatCompletionStreamState()
        for chunk in create(**body, stream=True, stream_options={"include_usage": True}):
            state.handle_chunk(chunk)
        return state.get_final_completion()


class Respond:
    """``respond(input, …)``: the final response, whether or not it was streamed."""

    def __init__(self, client: openai.OpenAI, *, streams: bool) -> None:
        self.client = client
        self.streams = streams

    def __call__(self, given: Any, *, model: str = "hermes", **fields: Any) -> Response:
        create: Any = self.client.responses.create
        answer: Response
        if not self.streams:
            answer = create(model=model, input=given, **fields)
            return answer
        *_, last = create(model=model, input=given, stream=True, **fields)
        assert last.type in ("response.completed", "response.incomplete"), last
        answer = last.response
        return answer


class Converse:
    """``converse("text", …)``: a message, folded by the SDK when it was streamed."""

    def __init__(self, client: anthropic.Anthropic, *, streams: bool) -> None:
        self.client = client
        self.streams = streams

    def __call__(self, given: Any, **fields: Any) -> Message:
        messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
        body = {"model": "hermes", "max_tokens": 2000, "messages": messages} | fields
        answer: Message
        if self.streams:
            stream: Any = self.client.messages.stream
            with stream(**body) as events:
                answer = events.get_final_message()
        else:
            create: Any = self.client.messages.create
            answer = create(**body)
        return answer
