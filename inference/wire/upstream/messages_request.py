"""A request as the body of Anthropic's messages, for an upstream. Pure.

    system turns, wherever they stand ─▶ system          a tool's result ─▶ the user's next turn
    turns of one role in a row ─▶ one turn               a schema ─▶ output_config.format

Every field is translated or refused by the client's name for it: see
``docs/decisions/0050-translated-for-upstreams.md``. Thoughts of earlier turns are left out: that
API requires its own signature. A client's cache mark inside a turn's text splits it into two
blocks, as they came. Source: https://docs.anthropic.com/en/api/messages.
"""

from __future__ import annotations

import base64
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import orjson

from inference.protocol.generation import (
    THINKING_SWITCHES,
    CacheMark,
    ChatInput,
    ChatMessage,
    GenerationRequest,
    ToolCall,
    ToolDefinition,
)
from inference.protocol.images import ImageRef
from inference.wire.common.parts import PART_SEPARATOR
from inference.wire.errors import UnsupportedParameterError
from inference.wire.upstream.sending import (
    BY_UPSTREAM,
    Sending,
    arguments_of,
    refuse,
    refuse_format,
    refuse_options,
    refuse_unknown,
)

Block = dict[str, Any]


class Marks:
    """``of_request``: the mark of the whole request; ``None``: it has none."""

    def __init__(self, marks: Iterable[CacheMark]) -> None:
        self.of_request: Block | None = None
        self._of_tools: dict[int, Block] = {}
        self._of_turns: dict[int, list[CacheMark]] = defaultdict(list)
        for mark in marks:
            if mark.message is not None:
                self._of_turns[mark.message].append(mark)
            elif mark.tool is not None:
                self._of_tools[mark.tool] = _control(mark)
            else:
                self.of_request = _control(mark)

    def has_any(self, message: int) -> bool:
        return message in self._of_turns

    def on_tools(self, tools: list[Block]) -> list[Block]:
        for index, control in self._of_tools.items():
            tools[index]["cache_control"] = control
        return tools

    def on_turn(self, message: int, blocks: list[Block]) -> list[Block]:
        """Adds marks to the blocks of that message, in place. ``blocks`` without any stay so, and
        so do its texts of white space, which that API does not cache."""
        if message not in self._of_turns or not blocks:
            return blocks
        marks = self._of_turns[message]
        if blocks[0]["type"] == "text":
            inside = {mark.at: _control(mark) for mark in marks if mark.at is not None}
            blocks = _cut(blocks[0]["text"], inside) + blocks[1:]
        for mark in marks:
            if mark.at is None and blocks[-1].get("text", "x").strip():
                blocks[-1]["cache_control"] = _control(mark)
        return blocks


def _cut(text: str, inside: dict[int, Block]) -> list[Block]:
    blocks: list[Block] = []
    start = 0
    for at in sorted(inside):
        if text[start:at].strip() and text[at:].strip():
            block = {"type": "text", "text": text[start:at], "cache_control": inside[at]}
            blocks.append(block)
            start = at + len(PART_SEPARATOR) if text.startswith(PART_SEPARATOR, at) else at
    return [*blocks, {"type": "text", "text": text[start:]}]


def _control(mark: CacheMark) -> Block:
    return {"type": "ephemeral", **({"ttl": mark.ttl} if mark.ttl else {})}


PATH = "/v1/messages"
FALLBACK_MAX_TOKENS = 8_192
"""The bound on the answer where neither the client nor the catalogue has one; the API requires
one."""
SYSTEM_SEPARATOR = "\n\n"
MAX_TEMPERATURE = 1.0
IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
UNKNOWN_OPTIONS = (
    *("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("seed", "top_logprobs", "stop_token_ids", "min_tokens", "ignore_eos"),
)
NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9_-]")
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


def body_of(request: GenerationRequest, sending: Sending) -> bytes:
    max_tokens = sending.max_tokens or FALLBACK_MAX_TOKENS
    prompt = prompt_of(request, sending)
    return orjson.dumps({**prompt, **_sampling(request), "max_tokens": max_tokens, "stream": True})


def prompt_of(request: GenerationRequest, sending: Sending) -> dict[str, Any]:
    """The model, and the part of a body whose tokens are counted. Raises ``ApiError`` for fields
    that are not translated."""
    chat = _translatable_chat(request)
    marks = Marks(request.cache_marks)
    body: dict[str, Any] = {"model": sending.model, "messages": _messages(chat, sending, marks)}
    if system := _system(chat, marks):
        body["system"] = system
    if marks.of_request is not None:
        body["cache_control"] = marks.of_request
    if chat.tools:
        tools = [_tool(tool) for tool in chat.tools]
        body["tools"] = marks.on_tools(tools)
        body["tool_choice"] = _tool_choice(chat)
    if thinking := _thinking(chat):
        body["thinking"] = thinking
    if config := _output_config(request, chat):
        body["output_config"] = config
    return body


def _translatable_chat(request: GenerationRequest) -> ChatInput:
    chat = request.input
    if not isinstance(chat, ChatInput):
        raise UnsupportedParameterError("prompt", BY_UPSTREAM)
    refuse_unknown(request)
    refuse_options(request.sampling, UNKNOWN_OPTIONS)
    others = chat.template_kwargs.keys() - set(THINKING_SWITCHES)
    refuse(
        {
            "n": request.n > 1,
            "chat_template_kwargs": bool(others),
            "add_generation_prompt": not (chat.adds_generation_prompt or chat.answer_start),
        }
    )
    refuse_format(request.output_format, allows_json=True, needs_schema=True)
    temperature = request.sampling.temperature
    if temperature is not None and temperature > MAX_TEMPERATURE:
        raise UnsupportedParameterError(
            "temperature", "the model is served by an upstream that takes 0 to 1"
        )
    return chat


def _system(chat: ChatInput, marks: Marks) -> str | list[dict[str, Any]]:
    turns = [
        (index, message.content)
        for index, message in enumerate(chat.messages)
        if message.role == "system" and message.content
    ]
    if not any(marks.has_any(index) for index, _ in turns):
        return SYSTEM_SEPARATOR.join([content for _, content in turns])
    blocks: list[dict[str, Any]] = []
    for index, content in turns:
        separated = marks.on_turn(index, [_text(content)])
        if blocks:
            separated[0]["text"] = SYSTEM_SEPARATOR + separated[0]["text"]
        blocks += separated
    return blocks


def _messages(chat: ChatInput, sending: Sending, marks: Marks) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    for index, message in enumerate(chat.messages):
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        _add_blocks(turns, role, marks.on_turn(index, _blocks(message, sending)))
    if chat.answer_start:
        _add_blocks(turns, "assistant", [_text(chat.answer_start)])
    return turns


def _add_blocks(turns: list[dict[str, Any]], role: str, blocks: list[dict[str, Any]]) -> None:
    """Adds blocks to the last turn or a new one. That API accepts neither empty turns nor results
    of one turn's calls in several."""
    if not blocks:
        return
    if turns and turns[-1]["role"] == role:
        turns[-1]["content"] += blocks
    else:
        turns.append({"role": role, "content": blocks})


def _blocks(message: ChatMessage, sending: Sending) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = [
        _text(part) if isinstance(part, str) else _image(part, sending)
        for part in message.parts or [message.content or ""]
        if part != ""
    ]
    if message.role == "tool":
        return [_result(message, content)]
    return content + [_call(call) for call in message.tool_calls]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image(image: ImageRef, sending: Sending) -> dict[str, Any]:
    if image.media_type not in IMAGE_TYPES:
        raise UnsupportedParameterError(
            "messages", f"the model is served by an upstream that takes no {image.media_type}"
        )
    data = base64.b64encode(sending.images[image.digest].data).decode()
    source = {"type": "base64", "media_type": image.media_type, "data": data}
    return {"type": "image", "source": source}


def _result(message: ChatMessage, content: list[dict[str, Any]]) -> dict[str, Any]:
    if not message.tool_call_id:
        raise UnsupportedParameterError(
            "messages",
            "a tool's result answers no call, and the model is served by an upstream that wants to "
            "know which",
        )
    result = {"type": "tool_result", "tool_use_id": _call_id(message.tool_call_id)}
    return {**result, "content": content} if content else result


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": _call_id(call.id),
        "name": call.name,
        "input": arguments_of(call),
    }


def _call_id(call_id: str) -> str:
    return NOT_IN_IDS.sub("_", call_id)


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    made: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        made["description"] = tool.description
    made["input_schema"] = tool.parameters or NO_PARAMETERS
    if tool.strict:
        made["strict"] = True
    return made


def _tool_choice(chat: ChatInput) -> dict[str, Any]:
    choice = chat.tool_choice
    if choice.mode == "none":
        return {"type": "none"}
    made: dict[str, Any] = {"type": "any" if choice.mode == "required" else "auto"}
    if choice.name is not None:
        made = {"type": "tool", "name": choice.name}
    if not chat.parallel_tool_calls:
        made["disable_parallel_tool_use"] = True
    return made


def _sampling(request: GenerationRequest) -> dict[str, Any]:
    options = request.sampling
    made: dict[str, Any] = {}
    if options.temperature is not None:
        made["temperature"] = options.temperature
    if options.top_p is not None:
        made["top_p"] = options.top_p
    if options.top_k:
        made["top_k"] = options.top_k
    if request.stop:
        made["stop_sequences"] = request.stop
    return made


def _thinking(chat: ChatInput) -> dict[str, Any] | None:
    wanted = chat.thinking
    if chat.template_kwargs:
        wanted = chat.wants_thinking
    if wanted is None and not chat.adaptive_thinking:
        return None
    if wanted is False:
        return {"type": "disabled"}
    if chat.thinking_budget_tokens is not None:
        return {"type": "enabled", "budget_tokens": chat.thinking_budget_tokens}
    adaptive = {"type": "adaptive"}
    return {**adaptive, "display": "summarized"} if chat.shows_reasoning else adaptive


def _output_config(request: GenerationRequest, chat: ChatInput) -> dict[str, Any]:
    config: dict[str, Any] = {}
    if chat.reasoning_effort is not None:
        config["effort"] = chat.reasoning_effort
    if request.output_format is not None:
        config["format"] = {"type": "json_schema", "schema": request.output_format.schema}
    return config
