"""OpenAI's chat or text completions, for an upstream: the body, and its chunks as our events.

Extensions keep vLLM's names. An answer that is not streamed is read as one chunk.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from inference.protocol.events import Event, FinishReason, TextLogprob, Usage
from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    GenerationRequest,
    OutputFormat,
    TextInput,
    ToolCall,
    ToolDefinition,
)
from inference.protocol.images import ImageRef
from inference.wire.upstream import Sending, refuse, refuse_format, refuse_unknown, tool_of
from inference.wire.upstream.answer_events import (
    Answer,
    AnswerReader,
    UpstreamFaultError,
    decoded,
    reason_of,
    tokens_of,
)

NEW_NAME_HOSTS = ("api.openai.com", ".openai.azure.com")
"""Their newer models refuse ``max_tokens`` in favour of ``max_completion_tokens``."""
LOW_BUDGET_TOKENS, MEDIUM_BUDGET_TOKENS = 2_048, 8_192
"""The largest thinking budgets of a low and a medium effort."""
FORMAT_NAME = "answer"


def path_and_body(request: GenerationRequest, sending: Sending) -> tuple[str, bytes]:
    chat = request.input
    body: dict[str, Any] = {"model": sending.model, "stream": True}
    body["stream_options"] = {"include_usage": True}
    if isinstance(chat, ChatInput):
        path = "/chat/completions"
        body |= prompt_of(request, sending)
        if chat.tools:
            body |= _tool_choice(chat)
        if effort := _reasoning_effort(chat):
            body["reasoning_effort"] = effort
    else:
        path = "/completions"
        _check_translatable(request)
        body["prompt"] = chat.texts if isinstance(chat, TextInput) else chat.prompts
    body |= _sampling(request)
    if sending.max_tokens is not None:
        body[_max_tokens_name(sending.host)] = sending.max_tokens
    if request.stop:
        body["stop"] = request.stop
    if request.n > 1:
        body["n"] = request.n
    if request.output_format is not None:
        body["response_format"] = _response_format(request.output_format)
    return path, orjson.dumps(body)


def prompt_of(request: GenerationRequest, sending: Sending) -> dict[str, Any]:
    """The part of a body that the template renders, by vLLM's names."""
    _check_translatable(request)
    chat = request.input
    assert isinstance(chat, ChatInput), "a prompt without turns"
    messages = [_message(message, sending) for message in chat.messages]
    body: dict[str, Any] = {"model": sending.model, "messages": messages}
    if chat.answer_start:
        messages.append({"role": "assistant", "content": chat.answer_start})
        body["continue_final_message"] = True
    if chat.answer_start or not chat.adds_generation_prompt:
        body["add_generation_prompt"] = False
    if chat.tools:
        body["tools"] = [function_tool(tool) for tool in chat.tools]
    if chat.template_kwargs:
        body["chat_template_kwargs"] = chat.template_kwargs
    return body


def function_tool(tool: ToolDefinition, *, shows_strict: bool = True) -> dict[str, Any]:
    function = tool_of(tool, parameters="parameters", shows_strict=shows_strict)
    return {"type": "function", "function": function}


def _check_translatable(request: GenerationRequest) -> None:
    is_chat = isinstance(request.input, ChatInput)
    refuse_unknown(request)
    refuse({"logprobs": request.sampling.top_logprobs is not None and not is_chat})
    refuse_format(request.output_format, allows_json=is_chat)


def _max_tokens_name(host: str) -> str:
    is_new = any(host == name or host.endswith(name) for name in NEW_NAME_HOSTS)
    return "max_completion_tokens" if is_new else "max_tokens"


def _message(message: ChatMessage, sending: Sending) -> dict[str, Any]:
    """Leaves out thoughts of earlier turns, as OpenAI's own clients do."""
    content: Any = message.content
    if message.images:
        content = [_part(part, sending) for part in message.parts]
    made: dict[str, Any] = {"role": message.role, "content": content}
    if message.name is not None:
        made["name"] = message.name
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        made["tool_calls"] = [_called(call) for call in message.tool_calls]
    return made


def _part(part: str | ImageRef, sending: Sending) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    url = {"url": sending.images[part.digest].data_uri}
    return {
        "type": "image_url",
        "image_url": url | ({"detail": "low"} if part.is_low_detail else {}),
    }


def _called(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _tool_choice(chat: ChatInput) -> dict[str, Any]:
    choice = chat.tool_choice
    made: dict[str, Any] = {}
    if choice.name is not None:
        made["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif choice.mode != "auto":
        made["tool_choice"] = choice.mode
    if not chat.parallel_tool_calls:
        made["parallel_tool_calls"] = False
    return made


def _reasoning_effort(chat: ChatInput) -> str | None:
    if chat.reasoning_effort is not None:
        return chat.reasoning_effort
    if chat.thinking is False:
        return "none"
    budget = chat.thinking_budget_tokens
    if not chat.thinking or budget is None:
        return None
    if budget <= LOW_BUDGET_TOKENS:
        return "low"
    return "medium" if budget <= MEDIUM_BUDGET_TOKENS else "high"


def _sampling(request: GenerationRequest) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(request.sampling, str_keys=True)
    made.pop("max_tokens", None)
    if "top_logprobs" in made:
        made["logprobs"] = True
    return made


def _response_format(demanded: OutputFormat) -> dict[str, Any]:
    schema = demanded.schema
    if schema is None:
        return {"type": "json_object"}
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    wanted = {"name": FORMAT_NAME, "schema": schema, "strict": demanded.strict}
    return {"type": "json_schema", "json_schema": wanted}


MAX_LOGPROB = 0.01


class Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: Function | None = None


class Logprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[Logprob] | None = None


class Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[Call] | None = None


class Choice(msgspec.Struct):
    index: int = 0
    delta: Message | None = None
    message: Message | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: Any = None


class Chunk(Answer):
    choices: list[Choice] | None = None
    usage: Any = None


_decode = msgspec.json.Decoder(Chunk).decode


def logprobs_of(content: Any) -> list[TextLogprob] | None:
    try:
        read = msgspec.convert(content, list[Logprob] | None) or []
        return [_text_logprob(one) for one in read] or None
    except ValueError as error:
        raise UpstreamFaultError("log probabilities of another form") from error


def _text_logprob(one: Logprob) -> TextLogprob:
    top = [(each.token, _token_bytes(each), _checked(each)) for each in one.top_logprobs or ()]
    return TextLogprob(
        token=one.token, token_bytes=_token_bytes(one), logprob=_checked(one), top=top
    )


def _token_bytes(one: Logprob) -> bytes:
    return one.token.encode("utf-8", "replace") if one.bytes is None else bytes(one.bytes)


def _checked(one: Logprob) -> float:
    if not one.logprob <= MAX_LOGPROB:  # NaN is not below it
        raise UpstreamFaultError("a log probability of more than all")
    return one.logprob


def usage_of(reported: Any) -> Usage | None:
    if not isinstance(reported, dict):
        return None
    prompt = tokens_of(reported, "prompt_tokens")
    completion = tokens_of(reported, "completion_tokens")
    if prompt is None or completion is None:
        return None
    cached = tokens_of(reported.get("prompt_tokens_details"), "cached_tokens") or 0
    reasoning = tokens_of(reported.get("completion_tokens_details"), "reasoning_tokens") or 0
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=min(cached, prompt),
        reasoning_tokens=min(reasoning, completion),
    )


DONE = b"[DONE]"
REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "stop",
}
"""Our reasons lack a filter's."""


class ChatEvents(AnswerReader):
    def read(self, data: bytes) -> list[Event]:
        if data == DONE:
            self._answer.end()
            return self._answer.take()
        chunk = decoded(_decode, data, "what is no chunk of an answer")
        if chunk.usage is not None:
            self._answer.reported_usage = usage_of(chunk.usage)
        if chunk.choices is None and chunk.usage is None:
            raise UpstreamFaultError("a chunk without choices")
        self._answer.accept()
        for choice in chunk.choices or ():
            self._choice(choice)
        return self._answer.take()

    def _choice(self, read: Choice) -> None:
        answer, index = self._answer, read.index
        added = read.delta or read.message or Message()
        thought = added.reasoning_content or added.reasoning
        text = read.text or added.content or added.refusal or ""
        if answer.is_finished(index):
            if thought or text or added.tool_calls:
                raise UpstreamFaultError("text of a choice that has finished")
            return
        if thought:
            answer.think(index, thought)
        for call in added.tool_calls or ():
            self._call(index, call)
        logprobs = self._logprobs(read.logprobs) if self._wants_logprobs else None
        if text or logprobs:
            answer.write(index, text, logprobs)
        if read.finish_reason is not None:
            answer.finish(index, reason_of(REASONS, read.finish_reason))

    def _call(self, index: int, call: Call) -> None:
        function, key = call.function or Function(), call.index
        if key is None or not self._answer.has_call(index, key):
            key = self._answer.begin_call(index, key, function.name, call.id)
        if function.arguments:
            self._answer.add_arguments(index, key, function.arguments)

    def _logprobs(self, read: Any) -> list[TextLogprob] | None:
        if not isinstance(read, dict | None):
            raise UpstreamFaultError("log probabilities of another form")
        return logprobs_of((read or {}).get("content"))
