"""A request as the body of OpenAI's chat or text completions, for an upstream. Pure.

Every field is translated or refused by the client's name for it: see
``docs/decisions/0050-translated-for-upstreams.md``. Extensions keep vLLM's names, and an
upstream that does not have one refuses it itself.
"""

from __future__ import annotations

from typing import Any

import orjson

from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    GenerationRequest,
    OutputFormat,
    TextInput,
    TokensInput,
    ToolCall,
)
from inference.protocol.images import ImageRef
from inference.wire.upstream.sending import Sending, refuse, refuse_format, refuse_unknown, tool_of

CHAT_PATH, COMPLETIONS_PATH = "/chat/completions", "/completions"
NEW_NAME_HOSTS = ("api.openai.com", ".openai.azure.com")
"""Their newer models refuse ``max_tokens`` in favour of ``max_completion_tokens``."""
LOW_BUDGET_TOKENS, MEDIUM_BUDGET_TOKENS = 2_048, 8_192
"""The largest thinking budgets of a low and a medium effort."""
SAME_NAMES = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)
FORMAT_NAME = "answer"


def path_of(request: GenerationRequest) -> str:
    return CHAT_PATH if isinstance(request.input, ChatInput) else COMPLETIONS_PATH


def body_of(request: GenerationRequest, sending: Sending) -> bytes:
    _check_translatable(request)
    body: dict[str, Any] = {"model": sending.model, "stream": True}
    body["stream_options"] = {"include_usage": True}
    match request.input:
        case ChatInput() as chat:
            body |= _chat(chat, sending)
        case TextInput(texts=texts):
            body["prompt"] = texts
        case TokensInput(prompts=prompts):
            body["prompt"] = prompts
    body |= _sampling(request)
    if sending.max_tokens is not None:
        body[_max_tokens_name(sending.host)] = sending.max_tokens
    if request.stop:
        body["stop"] = request.stop
    if request.n > 1:
        body["n"] = request.n
    if request.output_format is not None:
        body["response_format"] = _response_format(request.output_format)
    return orjson.dumps(body)


def rendered_of(request: GenerationRequest, sending: Sending) -> dict[str, Any]:
    """The part of a chat's body that its template renders, by vLLM's names. Raises ``ApiError`` for
    fields that are not translated."""
    _check_translatable(request)
    assert isinstance(request.input, ChatInput), "a prompt without turns"
    return _rendered(request.input, sending)


def _check_translatable(request: GenerationRequest) -> None:
    options, is_chat = request.sampling, isinstance(request.input, ChatInput)
    refuse_unknown(request)
    refuse({"logprobs": options.top_logprobs is not None and not is_chat})
    refuse_format(request.output_format, allows_json=is_chat)


def _max_tokens_name(host: str) -> str:
    is_new = any(host == name or host.endswith(name) for name in NEW_NAME_HOSTS)
    return "max_completion_tokens" if is_new else "max_tokens"


def _chat(chat: ChatInput, sending: Sending) -> dict[str, Any]:
    body = _rendered(chat, sending)
    if chat.tools:
        body |= _tool_choice(chat)
    if effort := _reasoning_effort(chat):
        body["reasoning_effort"] = effort
    return body


def _rendered(chat: ChatInput, sending: Sending) -> dict[str, Any]:
    messages = [_message(message, sending) for message in chat.messages]
    body: dict[str, Any] = {"messages": messages}
    if chat.answer_start:
        messages.append({"role": "assistant", "content": chat.answer_start})
        body["continue_final_message"] = True
        body["add_generation_prompt"] = False
    elif not chat.adds_generation_prompt:
        body["add_generation_prompt"] = False
    if chat.tools:
        body["tools"] = [tool_of(tool) for tool in chat.tools]
    if chat.template_kwargs:
        body["chat_template_kwargs"] = chat.template_kwargs
    return body


def _message(message: ChatMessage, sending: Sending) -> dict[str, Any]:
    """Thoughts of earlier turns are left out, as OpenAI's own clients do."""
    content: Any = message.content
    if message.images:
        content = [
            {"type": "text", "text": part}
            if isinstance(part, str)
            else {"type": "image_url", "image_url": _image(part, sending)}
            for part in message.parts
        ]
    made: dict[str, Any] = {"role": message.role, "content": content}
    if message.name is not None:
        made["name"] = message.name
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        made["tool_calls"] = [_called(call) for call in message.tool_calls]
    return made


def _image(image: ImageRef, sending: Sending) -> dict[str, str]:
    url = {"url": sending.images[image.digest].data_uri}
    return url | {"detail": "low"} if image.is_low_detail else url


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
    """Converts a thinking budget to an effort. ``None``: the client set nothing."""
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
    options = request.sampling
    named = {name: getattr(options, name) for name in SAME_NAMES}
    made: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    if options.logit_bias:
        made["logit_bias"] = {str(token): bias for token, bias in options.logit_bias.items()}
    if options.top_logprobs is not None:
        made["logprobs"] = True
        made["top_logprobs"] = options.top_logprobs
    if options.stop_token_ids:
        made["stop_token_ids"] = options.stop_token_ids
    if options.min_tokens:
        made["min_tokens"] = options.min_tokens
    if options.ignore_eos:
        made["ignore_eos"] = True
    return made


def _response_format(demanded: OutputFormat) -> dict[str, Any]:
    schema = demanded.schema
    if schema is None:
        return {"type": "json_object"}
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    wanted = {"name": FORMAT_NAME, "schema": schema, "strict": demanded.strict}
    return {"type": "json_schema", "json_schema": wanted}
