"""Ollama's chat, and its generate for a prompt without turns, for an upstream.

Ollama cuts prompts that are longer than its context by default, which is always turned off. Source:
https://docs.ollama.com/api, the types of the ``ollama`` package.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import orjson

from inference.protocol.events import Event, FinishReason, Usage
from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    GenerationRequest,
    TextInput,
    ToolCall,
)
from inference.wire.errors import UnsupportedParameterError
from inference.wire.upstream import (
    BY_UPSTREAM,
    Sending,
    arguments_of,
    is_set,
    refuse,
    refuse_format,
    refuse_template,
    refuse_unknown,
    thinking_of,
)
from inference.wire.upstream.answer_events import (
    Answer,
    AnswerReader,
    UpstreamFaultError,
    decoded,
    reason_of,
)
from inference.wire.upstream.chat import function_tool, logprobs_of

PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")
SAME_NAMES = ("temperature", "top_p", "top_k", "min_p", "seed", *PENALTIES[:2])
OPTION_NAMES = {name: name for name in SAME_NAMES} | {"repetition_penalty": "repeat_penalty"}
WHOLE_TEXT = -1
"""The window of penalties. Ollama's own default is 64 tokens."""
UNKNOWN_OPTIONS = ("logit_bias", "stop_token_ids", "min_tokens", "ignore_eos")


def path_and_body(request: GenerationRequest, sending: Sending) -> tuple[str, bytes]:
    refuse_unknown(request, UNKNOWN_OPTIONS)
    refuse({"n": request.n > 1})
    body: dict[str, Any] = {"model": sending.model, "stream": True}
    body |= {"truncate": False, "shift": False}
    top = request.sampling.top_logprobs
    match request.input:
        case ChatInput() as chat:
            path = "/api/chat"
            body |= _chat(chat, sending)
            body |= {} if top is None else {"logprobs": True, "top_logprobs": top}
        case TextInput(texts=[text]):
            path = "/api/generate"
            refuse({"logprobs": top is not None})
            body |= {"prompt": text, "raw": True}
        case _:
            raise UnsupportedParameterError("prompt", BY_UPSTREAM)
    if (wanted := request.output_format) is not None:
        refuse_format(wanted, allows_json=isinstance(request.input, ChatInput))
        refuse({wanted.path: isinstance(wanted.schema, bool)})
        body["format"] = "json" if wanted.schema is None else wanted.schema
    if options := _options(request, sending):
        body["options"] = options
    return path, orjson.dumps(body)


def _chat(chat: ChatInput, sending: Sending) -> dict[str, Any]:
    refuse(
        {
            "tool_choice": chat.tool_choice.mode == "required",
            "parallel_tool_calls": bool(chat.rendered_tools) and not chat.parallel_tool_calls,
        }
    )
    refuse_template(chat)
    names = {call.id: call.name for message in chat.messages for call in message.tool_calls}
    messages = [_message(message, names, sending) for message in chat.messages]
    if chat.answer_start:
        messages.append({"role": "assistant", "content": chat.answer_start})
    body: dict[str, Any] = {"messages": messages}
    if chat.rendered_tools:
        body["tools"] = [function_tool(tool, shows_strict=False) for tool in chat.rendered_tools]
    think = _think(chat)
    return body if think is None else {**body, "think": think}


def _message(message: ChatMessage, names: dict[str, str], sending: Sending) -> dict[str, Any]:
    """``names``: of the functions, by the id of their call."""
    made: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.images:
        files = [sending.images[image.digest].data for image in message.images]
        made["images"] = [base64.b64encode(data).decode() for data in files]
    if message.reasoning:
        made["thinking"] = message.reasoning
    if message.tool_calls:
        made["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.role == "tool":
        if name := message.name or names.get(message.tool_call_id or ""):
            made["tool_name"] = name
        if message.tool_call_id:
            made["tool_call_id"] = message.tool_call_id
    return made


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "function": {"name": call.name, "arguments": arguments_of(call)}}


def _think(chat: ChatInput) -> bool | str | None:
    """That API has no effort without thinking, and no budget."""
    wanted = thinking_of(chat)
    return chat.reasoning_effort or True if wanted else wanted


def _options(request: GenerationRequest, sending: Sending) -> dict[str, Any]:
    sampling = request.sampling
    has_penalty = any(is_set(sampling, name) for name in PENALTIES)
    options = {
        **{theirs: getattr(sampling, ours) for ours, theirs in OPTION_NAMES.items()},
        "repeat_last_n": WHOLE_TEXT if has_penalty else None,
        "stop": request.stop or None,
        "num_predict": sending.max_tokens,
        "num_ctx": sending.context_tokens,
    }
    return {name: value for name, value in options.items() if value is not None}


CHOICE = 0
REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


class Function(msgspec.Struct):
    name: str | None = None
    arguments: dict[str, Any] | None = None


class Call(msgspec.Struct):
    function: Function
    id: str | None = None


class Message(msgspec.Struct):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[Call] | None = None


class Line(Answer):
    message: Message | None = None
    response: str | None = None
    """The text of generate; its thoughts are a field beside it."""
    thinking: str | None = None
    done: bool = False
    done_reason: str | None = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    logprobs: Any = None


_decode = msgspec.json.Decoder(Line).decode


class OllamaEvents(AnswerReader):
    def read(self, data: bytes) -> list[Event]:
        line = decoded(_decode, data, "what is no line of an answer")
        if line.message is None and line.response is None:
            raise UpstreamFaultError("a line without a message")
        self._answer.accept()
        self._grow(line, line.message or Message(line.response, line.thinking))
        if line.done:
            self._stop(line)
        return self._answer.take()

    def _grow(self, line: Line, added: Message) -> None:
        if added.thinking:
            self._answer.think(CHOICE, added.thinking)
        logprobs = logprobs_of(line.logprobs) if self._wants_logprobs else None
        if added.content or logprobs:
            self._answer.write(CHOICE, added.content or "", logprobs)
        for call in added.tool_calls or ():
            key = self._answer.begin_call(CHOICE, None, call.function.name, call.id)
            arguments = orjson.dumps(call.function.arguments or {}).decode()
            self._answer.add_arguments(CHOICE, key, arguments)
        if added.tool_calls:
            self._answer.send_calls(CHOICE)

    def _stop(self, line: Line) -> None:
        reason = reason_of(REASONS, line.done_reason or "stop")
        self._answer.reported_usage = _usage_of(line)
        self._answer.finish(CHOICE, reason)
        self._answer.end()


def _usage_of(line: Line) -> Usage | None:
    prompt, completion = line.prompt_eval_count, line.eval_count
    if prompt is None or completion is None or min(prompt, completion) < 0:
        return None
    return Usage(prompt_tokens=prompt, completion_tokens=completion)
