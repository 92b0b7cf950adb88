"""Ollama's chat: bytes in, one request out; events in, lines of JSON or one body out.

    parse(body) ─▶ OllamaRequest(generation, shape) ─▶ the encoders of ollama_answers

Without messages the model is only loaded. Source: https://docs.ollama.com/api/chat. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    GenerationRequest,
    TextInput,
    TokenCountRequest,
)
from inference.wire.common.fields import (
    Field,
    honoured,
    read_fields,
    read_json_object,
    table,
)
from inference.wire.dialect import NO_CONTEXT, RequestContext
from inference.wire.ollama.answers import (
    FineClock,
    OllamaBodyEncoder,
    OllamaStreamEncoder,
    Shape,
)
from inference.wire.ollama.fields import (
    OPTION_FIELDS,
    SHARED_FIELDS,
    catalogue_name,
    sampling_options,
)
from inference.wire.ollama.messages import CALL_FIELDS, CALLED_FIELDS, MESSAGE_FIELDS, messages
from inference.wire.openai.chat import tools as openai_tools

FIELDS = table(
    *SHARED_FIELDS,
    honoured("messages", messages, "Turns; none: the model is loaded, and nothing answered."),
    honoured("tools", openai_tools.tools, "Functions."),
)
NESTED_FIELDS: dict[str, Mapping[str, Field]] = {
    "options": OPTION_FIELDS,
    "messages": MESSAGE_FIELDS,
    "tool_calls": CALL_FIELDS,
    "the function of a tool call": CALLED_FIELDS,
}
"""The objects inside a request, by what they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaRequest:
    """``only_loads``: nothing is asked, and ``generation`` is not to be run."""

    generation: GenerationRequest
    stream: bool
    shape: Shape
    only_loads: bool = False

    @property
    def load(self) -> TokenCountRequest:
        """What has the model loaded and costs nothing."""
        nothing = ChatInput(messages=[ChatMessage(role="user", content="")])
        return TokenCountRequest(model=self.generation.model, input=nothing)

    def stream_encoder(self, *, request_id: str, clock: FineClock) -> OllamaStreamEncoder:
        return OllamaStreamEncoder(self.shape, clock, shows_thinking=self._shows_thinking)

    def body_encoder(self, *, request_id: str, clock: FineClock) -> OllamaBodyEncoder:
        return OllamaBodyEncoder(self.shape, clock, shows_thinking=self._shows_thinking)

    @property
    def _shows_thinking(self) -> bool:
        """Some models think although they are asked not to."""
        given = self.generation.input
        return not isinstance(given, ChatInput) or given.shows_reasoning


def parse(body: bytes, context: RequestContext = NO_CONTEXT) -> OllamaRequest:
    """Raises ``ApiError`` (400) for everything that is not a request this server honours whole."""
    read = read_fields(read_json_object(body), FIELDS, required=("model",))
    turns: list[ChatMessage] = read.get("messages", [])
    chat = chat_input(read, turns, tools=read.get("tools", []))
    return request_of(read, chat, is_chat=True, only_loads=not turns)


def chat_input(read: dict[str, Any], turns: list[ChatMessage], **more: Any) -> ChatInput:
    """The chat of a body. Reasoning is shown unless thinking is disabled."""
    think: bool | str | None = read.get("think")
    return ChatInput(
        messages=turns,
        thinking=None if think is None else bool(think),
        reasoning_effort=think if isinstance(think, str) else None,
        shows_reasoning=think is not False,
        **more,
    )


def request_of(
    read: dict[str, Any], given: ChatInput | TextInput, *, is_chat: bool, only_loads: bool
) -> OllamaRequest:
    generation = GenerationRequest(
        model=catalogue_name(read["model"]),
        input=given,
        sampling=sampling_options(read),
        stop=read.get("options", {}).get("stop", []),
        output_format=read.get("format"),
        ends_at_context=True,
    )
    return OllamaRequest(
        generation=generation,
        stream=read.get("stream", True),
        shape=Shape(model=read["model"], is_chat=is_chat),
        only_loads=only_loads,
    )
