"""A request as the body of Anthropic's messages, for an upstream.

    system turns, wherever they stand ─▶ system          a tool's result ─▶ the user's next turn
    turns of one role in a row ─▶ one turn               a schema ─▶ output_config.format

Thoughts of earlier turns are left out: that API requires its own signature.
Source: https://docs.anthropic.com/en/api/messages.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Any

import orjson

from inference.protocol.generation import (
    CacheMark,
    ChatInput,
    ChatMessage,
    GenerationRequest,
    ToolCall,
)
from inference.protocol.images import ImageRef
from inference.wire.errors import UnsupportedParameterError
from inference.wire.parts import PART_SEPARATOR
from inference.wire.upstream import (
    BY_UPSTREAM,
    Sending,
    arguments_of,
    refuse,
    refuse_format,
    refuse_template,
    refuse_unknown,
    thinking_of,
    tool_of,
)

Block = dict[str, Any]


class Marks:
    def __init__(self, marks: Sequence[CacheMark]) -> None:
        self._marks = marks

    def of(self, *, message: int | None = None, tool: int | None = None) -> list[CacheMark]:
        """Without arguments: of the whole request."""
        return [mark for mark in self._marks if (mark.message, mark.tool) == (message, tool)]

    def on_turn(self, message: int, blocks: list[Block]) -> list[Block]:
        """A mark inside a text splits its block. That API does not cache white space."""
        marks = self.of(message=message)
        if not marks or not blocks:
            return blocks
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
"""The API requires a bound."""
SYSTEM_SEPARATOR = "\n\n"
MAX_TEMPERATURE = 1.0
IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
UNKNOWN_OPTIONS = (
    *("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("seed", "top_logprobs", "stop_token_ids", "min_tokens", "ignore_eos"),
)
NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9_-]")


def body_of(request: GenerationRequest, sending: Sending) -> bytes:
    max_tokens = sending.max_tokens or FALLBACK_MAX_TOKENS
    prompt = prompt_of(request, sending)
    return orjson.dumps({**prompt, **_sampling(request), "max_tokens": max_tokens, "stream": True})


def prompt_of(request: GenerationRequest, sending: Sending) -> Block:
    """The part of a body whose tokens are counted."""
    chat = _translatable_chat(request)
    marks = Marks(request.cache_marks)
    body: Block = {"model": sending.model, "messages": _messages(chat, sending, marks)}
    if system := _system(chat, marks):
        body["system"] = system
    for mark in marks.of():
        body["cache_control"] = _control(mark)
    if chat.tools:
        body["tools"] = [tool_of(tool, parameters="input_schema") for tool in chat.tools]
        for index, tool in enumerate(body["tools"]):
            for mark in marks.of(tool=index):
                tool["cache_control"] = _control(mark)
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
    refuse_unknown(request, UNKNOWN_OPTIONS)
    refuse({"n": request.n > 1})
    refuse_template(chat)
    refuse_format(request.output_format, allows_json=True, needs_schema=True)
    temperature = request.sampling.temperature
    if temperature is not None and temperature > MAX_TEMPERATURE:
        raise UnsupportedParameterError(
            "temperature", "the model is served by an upstream that takes 0 to 1"
        )
    return chat


def _system(chat: ChatInput, marks: Marks) -> str | list[Block]:
    turns = [
        (index, message.content)
        for index, message in enumerate(chat.messages)
        if message.role == "system" and message.content
    ]
    if not any(marks.of(message=index) for index, _ in turns):
        return SYSTEM_SEPARATOR.join([content for _, content in turns])
    blocks: list[Block] = []
    for index, content in turns:
        separated = marks.on_turn(index, [_text(content)])
        if blocks:
            separated[0]["text"] = SYSTEM_SEPARATOR + separated[0]["text"]
        blocks += separated
    return blocks


def _messages(chat: ChatInput, sending: Sending, marks: Marks) -> list[Block]:
    turns: list[Block] = []
    for index, message in enumerate(chat.messages):
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        _add_blocks(turns, role, marks.on_turn(index, _blocks(message, sending)))
    if chat.answer_start:
        _add_blocks(turns, "assistant", [_text(chat.answer_start)])
    return turns


def _add_blocks(turns: list[Block], role: str, blocks: list[Block]) -> None:
    """That API accepts neither empty turns nor results of one turn's calls in several."""
    if not blocks:
        return
    if turns and turns[-1]["role"] == role:
        turns[-1]["content"] += blocks
    else:
        turns.append({"role": role, "content": blocks})


def _blocks(message: ChatMessage, sending: Sending) -> list[Block]:
    content: list[Block] = [
        _text(part) if isinstance(part, str) else _image(part, sending)
        for part in message.parts or [message.content or ""]
        if part != ""
    ]
    if message.role == "tool":
        return [_result(message, content)]
    return content + [_call(call) for call in message.tool_calls]


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _image(image: ImageRef, sending: Sending) -> Block:
    if image.media_type not in IMAGE_TYPES:
        raise UnsupportedParameterError(
            "messages", f"the model is served by an upstream that takes no {image.media_type}"
        )
    data = base64.b64encode(sending.images[image.digest].data).decode()
    source = {"type": "base64", "media_type": image.media_type, "data": data}
    return {"type": "image", "source": source}


def _result(message: ChatMessage, content: list[Block]) -> Block:
    if not message.tool_call_id:
        raise UnsupportedParameterError(
            "messages",
            "a tool's result answers no call, and the model is served by an upstream that wants to "
            "know which",
        )
    result = {"type": "tool_result", "tool_use_id": _call_id(message.tool_call_id)}
    return {**result, "content": content} if content else result


def _call(call: ToolCall) -> Block:
    return {
        "type": "tool_use",
        "id": _call_id(call.id),
        "name": call.name,
        "input": arguments_of(call),
    }


def _call_id(call_id: str) -> str:
    return NOT_IN_IDS.sub("_", call_id)


def _tool_choice(chat: ChatInput) -> Block:
    choice = chat.tool_choice
    if choice.mode == "none":
        return {"type": "none"}
    made: Block = {"type": "any" if choice.mode == "required" else "auto"}
    if choice.name is not None:
        made = {"type": "tool", "name": choice.name}
    if not chat.parallel_tool_calls:
        made["disable_parallel_tool_use"] = True
    return made


def _sampling(request: GenerationRequest) -> Block:
    options = request.sampling
    made = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "top_k": options.top_k or None,
        "stop_sequences": request.stop or None,
    }
    return {name: value for name, value in made.items() if value is not None}


def _thinking(chat: ChatInput) -> Block | None:
    wanted = thinking_of(chat)
    if wanted is None and not chat.adaptive_thinking:
        return None
    if wanted is False:
        return {"type": "disabled"}
    if chat.thinking_budget_tokens is not None:
        return {"type": "enabled", "budget_tokens": chat.thinking_budget_tokens}
    adaptive = {"type": "adaptive"}
    return {**adaptive, "display": "summarized"} if chat.shows_reasoning else adaptive


def _output_config(request: GenerationRequest, chat: ChatInput) -> Block:
    config: Block = {}
    if chat.reasoning_effort is not None:
        config["effort"] = chat.reasoning_effort
    if request.output_format is not None:
        config["format"] = {"type": "json_schema", "schema": request.output_format.schema}
    return config
