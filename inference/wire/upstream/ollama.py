"""Ollama's chat, and its generate for a prompt without turns, for an upstream: the body, and its
lines as our events. Pure.

    line ─▶ accept ─▶ think | write | calls ─▶ done: usage ─▶ finish ─▶ end

Every field is translated or refused by the client's name for it: see
``docs/decisions/0050-translated-for-upstreams.md``. Ollama cuts prompts that are longer than its
context by default, which is always turned off. A call comes whole. An answer that is not streamed
is one line. Source: https://docs.ollama.com/api, the types of the ``ollama`` package.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import orjson

from inference.protocol.events import Event, FinishReason, Usage
from inference.protocol.generation import (
    THINKING_SWITCHES,
    ChatInput,
    ChatMessage,
    GenerationRequest,
    OutputFormat,
    TextInput,
    ToolCall,
)
from inference.wire.errors import UnsupportedParameterError
from inference.wire.upstream.answer_events import (
    AnswerEvents,
    UpstreamFaultError,
    decoded,
)
from inference.wire.upstream.chat import logprobs_of
from inference.wire.upstream.sending import (
    BY_UPSTREAM,
    Sending,
    arguments_of,
    is_set,
    refuse,
    refuse_format,
    refuse_options,
    refuse_unknown,
    tool_of,
)

CHAT_PATH, GENERATE_PATH = "/api/chat", "/api/generate"
OPTION_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repeat_penalty",
}
PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")
WHOLE_TEXT = -1
"""The window of penalties. Ollama's own default is 64 tokens."""
UNKNOWN_OPTIONS = ("logit_bias", "stop_token_ids", "min_tokens", "ignore_eos")


def path_of(request: GenerationRequest) -> str:
    return CHAT_PATH if isinstance(request.input, ChatInput) else GENERATE_PATH


def body_of(request: GenerationRequest, sending: Sending) -> bytes:
    refuse_unknown(request)
    refuse_options(request.sampling, UNKNOWN_OPTIONS)
    refuse({"n": request.n > 1})
    body: dict[str, Any] = {
        "model": sending.model,
        "stream": True,
        "truncate": False,
        "shift": False,
    }
    match request.input:
        case ChatInput() as chat:
            body |= _chat(chat, sending)
            body |= _logprobs(request)
        case TextInput(texts=[text]):
            refuse({"logprobs": request.sampling.top_logprobs is not None})
            body |= {"prompt": text, "raw": True}
        case _:
            raise UnsupportedParameterError("prompt", BY_UPSTREAM)
    if request.output_format is not None:
        is_chat = isinstance(request.input, ChatInput)
        body["format"] = _format(request.output_format, allows_json=is_chat)
    if options := _options(request, sending):
        body["options"] = options
    return orjson.dumps(body)


def _chat(chat: ChatInput, sending: Sending) -> dict[str, Any]:
    _check_chat(chat)
    names = {call.id: call.name for message in chat.messages for call in message.tool_calls}
    messages = [_message(message, names, sending) for message in chat.messages]
    if chat.answer_start:
        messages.append({"role": "assistant", "content": chat.answer_start})
    body: dict[str, Any] = {"messages": messages}
    if chat.rendered_tools:
        body["tools"] = [tool_of(tool, shows_strict=False) for tool in chat.rendered_tools]
    think = _think(chat)
    return body if think is None else {**body, "think": think}


def _check_chat(chat: ChatInput) -> None:
    others = chat.template_kwargs.keys() - set(THINKING_SWITCHES)
    refuse(
        {
            "tool_choice": chat.tool_choice.mode == "required",
            "parallel_tool_calls": bool(chat.rendered_tools) and not chat.parallel_tool_calls,
            "chat_template_kwargs": bool(others),
            "add_generation_prompt": not (chat.adds_generation_prompt or chat.answer_start),
        }
    )


def _message(message: ChatMessage, names: dict[str, str], sending: Sending) -> dict[str, Any]:
    """``names``: of the functions, by the id of their call. Images come before the text."""
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
    """``None``: the client set nothing. That API has no effort without thinking; a budget becomes
    thinking without a limit."""
    wanted = chat.wants_thinking if chat.template_kwargs else chat.thinking
    return chat.reasoning_effort or True if wanted else wanted


def _logprobs(request: GenerationRequest) -> dict[str, Any]:
    top = request.sampling.top_logprobs
    return {} if top is None else {"logprobs": True, "top_logprobs": top}


def _format(wanted: OutputFormat, *, allows_json: bool) -> Any:
    refuse_format(wanted, allows_json=allows_json)
    refuse({wanted.path: isinstance(wanted.schema, bool)})
    return "json" if wanted.schema is None else wanted.schema


def _options(request: GenerationRequest, sending: Sending) -> dict[str, Any]:
    sampling = request.sampling
    given = {theirs: getattr(sampling, ours) for ours, theirs in OPTION_NAMES.items()}
    options = {name: value for name, value in given.items() if value is not None}
    if any(is_set(sampling, name) for name in PENALTIES):
        options["repeat_last_n"] = WHOLE_TEXT
    if request.stop:
        options["stop"] = request.stop
    if sending.max_tokens is not None:
        options["num_predict"] = sending.max_tokens
    if sending.context_tokens is not None:
        options["num_ctx"] = sending.context_tokens
    return options


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


class Line(msgspec.Struct):
    message: Message | None = None
    response: str | None = None
    """A text of generate; its thoughts are a field beside it."""
    thinking: str | None = None
    done: bool = False
    done_reason: str | None = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    logprobs: Any = None
    error: Any = None


_decode = msgspec.json.Decoder(Line).decode


class OllamaEvents:
    def __init__(self, answer: AnswerEvents, *, wants_logprobs: bool = False) -> None:
        self._answer = answer
        self._wants_logprobs = wants_logprobs

    def read(self, data: bytes) -> list[Event]:
        """Raises ``UpstreamFaultError``, ``UpstreamErrorObject``."""
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
        is_wanted = self._wants_logprobs and line.logprobs is not None
        logprobs = logprobs_of({"content": line.logprobs}) if is_wanted else None
        if added.content or logprobs:
            self._answer.write(CHOICE, added.content or "", logprobs)
        for call in added.tool_calls or ():
            key = self._answer.begin_call(CHOICE, None, call.function.name, call.id)
            arguments = orjson.dumps(call.function.arguments or {}).decode()
            self._answer.add_arguments(CHOICE, key, arguments)
        if added.tool_calls:
            self._answer.send_calls(CHOICE)

    def _stop(self, line: Line) -> None:
        reason = REASONS.get(line.done_reason or "stop")
        if reason is None:
            raise UpstreamFaultError("an unknown reason for an answer's end")
        self._answer.reported_usage = _usage_of(line)
        self._answer.finish(CHOICE, reason)
        self._answer.end()


def _usage_of(line: Line) -> Usage | None:
    prompt, completion = line.prompt_eval_count, line.eval_count
    if prompt is None or completion is None or min(prompt, completion) < 0:
        return None
    return Usage(prompt_tokens=prompt, completion_tokens=completion)
