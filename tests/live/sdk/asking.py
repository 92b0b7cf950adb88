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
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
WEATHER_IN_RESPONSES = {"type": "function", "name": "get_weather", "parameters": SCHEMA}
WEATHER_IN_MESSAGES = {"name": "get_weather", "input_schema": SCHEMA}
OSLO: dict[str, Any] = {"city": "Oslo", "days": 3}
OSLO_CALL = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>'
)
CLOCK_CALL = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "CET"}}\n</tool_call>'


class Asker:
    """Chat completions, responses and messages of the model ``hermes``, folded by the SDK where
    they were streamed."""

    def __init__(
        self, openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic, *, streams: bool
    ) -> None:
        self._openai: Any = openai_client
        self._anthropic: Any = anthropic_client
        self._streams = streams

    def chat(self, messages: list[Any], **fields: Any) -> ChatCompletion:
        body = {"model": "hermes", "messages": messages} | fields
        create = self._openai.chat.completions.create
        if not self._streams:
            answer: ChatCompletion = create(**body)
            return answer
        state = ChatCompletionStreamState()
        for chunk in create(**body, stream=True, stream_options={"include_usage": True}):
            state.handle_chunk(chunk)
        return state.get_final_completion()

    def respond(self, given: Any, **fields: Any) -> Response:
        answer: Response
        if self._streams:
            *_, last = self._openai.responses.create(
                model="hermes", input=given, stream=True, **fields
            )
            answer = last.response
        else:
            answer = self._openai.responses.create(model="hermes", input=given, **fields)
        assert answer.status == "completed"
        return answer

    def message(self, messages: list[Any], **fields: Any) -> Message:
        body = {"model": "hermes", "max_tokens": 2000, "messages": messages} | fields
        answer: Message
        if self._streams:
            with self._anthropic.messages.stream(**body) as events:
                answer = events.get_final_message()
        else:
            answer = self._anthropic.messages.create(**body)
        return answer
