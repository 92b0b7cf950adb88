"""OpenAI's chat completions dialect (https://platform.openai.com/docs/api-reference/chat)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from inference.protocol.events import (
    Accepted,
    Delta,
    Event,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from inference.protocol.generation import ChatInput, ChatMessage, ToolChoice
from inference.wire import fields as f
from inference.wire.dialect import NO_CONTEXT, Encoder, RequestContext, UnixClock
from inference.wire.errors import InvalidRequestError
from inference.wire.openai import chat_turns as turns
from inference.wire.openai import fields as openai_fields
from inference.wire.openai.answers import (
    AskedAnswer,
    BodyEncoder,
    Choice,
    StreamEncoder,
    json_array,
    token_object,
)
from inference.wire.openai.fields import (
    MAX_TOP_LOGPROBS,
    PROMPT_CACHE_FIELDS,
    SERVICE_FIELDS,
)
from inference.wire.openai.formats import (
    FORMAT_FIELDS,
    OUTPUT_FIELDS,
    SCHEMA_FIELDS,
    STRUCTURED_FIELDS,
    check_with_tools,
    output_format,
)
from inference.wire.parts import without_answer_start

THINKING_EFFORTS = ("low", "medium", "high", "xhigh", "max")
NOT_THINKING_EFFORTS = ("none", "minimal")

INLINE_REASONING_HEADER = "x-include-thinking"
"""``true``: thinking is sent in the answer's text, as some bridges want it."""

FIELDS = f.table(
    *openai_fields.SHARED_FIELDS.values(),
    f.required("messages", turns.messages, "At least one turn; text only."),
    f.honoured("tools", turns.tools, "Functions; custom tools are refused."),
    f.honoured(
        "tool_choice",
        turns.tool_choice,
        "auto, none, required, a function, or allowed_tools.",
    ),
    turns.PARALLEL_TOOL_CALLS,
    *OUTPUT_FIELDS,
    f.honoured(
        "prediction",
        turns.PREDICTION_FIELDS.read,
        "Guesses that are verified, where the model's entry speculates; changes no answer.",
    ),
    f.honoured(
        "reasoning_effort",
        f.one_of(*NOT_THINKING_EFFORTS, *THINKING_EFFORTS),
        "none and minimal: no thinking; others: handed to the chat template.",
    ),
    f.honoured(
        "include_reasoning",
        f.flag,
        "Extension; what the model thinks, as reasoning_content. Header x-include-thinking: "
        "inside content instead.",
    ),
    f.honoured("max_tokens", f.integer(1, openai_fields.MAX_TOKENS), "At least 1."),
    f.honoured(
        "max_completion_tokens",
        f.integer(1, openai_fields.MAX_TOKENS),
        "The newer name of max_tokens.",
    ),
    f.honoured("logprobs", f.flag, "Log probabilities of the output tokens."),
    f.honoured("top_logprobs", f.integer(0, MAX_TOP_LOGPROBS), "0 to 20; only with logprobs."),
    f.honoured("chat_template_kwargs", f.json_object, "Extension; handed to the chat template."),
    f.honoured(
        "continue_final_message",
        f.flag,
        "Extension; true: the last turn is the assistant's and starts the answer.",
    ),
    f.honoured(
        "add_generation_prompt",
        f.flag,
        "Extension; false: the prompt ends with the last turn, unless that starts the answer.",
    ),
    f.neutral("metadata", openai_fields.metadata, "Labels; kept nowhere."),
    f.neutral("prompt_cache_key", f.text(1024), "Prefixes are shared by content, without a key."),
    f.neutral("store", f.flag, "Kept nowhere either way: this API reads nothing back."),
    f.fixed("best_of", 1, "every answer is returned; use n"),
    f.fixed("echo", False, "a chat's turns are not echoed"),
    f.fixed("add_special_tokens", False, "the chat template writes them"),
    f.fixed("documents", [], "put them into a turn"),
    f.refused("chat_template", "the model's own is used, or its operator's"),
    f.fixed("modalities", ["text"], "only text is generated"),
    f.fixed("verbosity", "medium", "only medium, the default"),
    f.fixed("functions", [], "functions are now called tools"),
    f.neutral(
        "function_call",
        f.only("none", "auto", reason="functions are now called tools: use tool_choice"),
        "none, auto",
    ),
    *SERVICE_FIELDS,
    f.refused("audio", "audio is not generated"),
    f.refused("web_search_options", "there is no web search"),
)

NESTED_FIELDS: dict[str, Mapping[str, f.Field]] = {
    **{f"{role} messages": fields for role, fields in turns.MESSAGE_FIELDS.items()},
    **{f"{kind} parts": fields for kind, fields in turns.PART_FIELDS.items()},
    "image_url": turns.IMAGE_URL_FIELDS,
    "prediction": turns.PREDICTION_FIELDS,
    "tool calls": turns.CALL_FIELDS,
    "the function of a tool call": turns.CALLED_FIELDS,
    "tools": turns.TOOL_FIELDS,
    "the function of a tool": turns.FUNCTION_FIELDS,
    "tool_choice of one function": turns.NAMED_FIELDS,
    "tool_choice of several functions": turns.ALLOWED_TOOLS_FIELDS,
    "allowed_tools": turns.ALLOWED_FIELDS,
    "response_format": FORMAT_FIELDS,
    "json_schema": SCHEMA_FIELDS,
    "structured_outputs": STRUCTURED_FIELDS,
    "stream_options": openai_fields.STREAM_OPTION_FIELDS,
    "prompt_cache_options": PROMPT_CACHE_FIELDS,
    "cache_control": turns.CACHE_CONTROL_FIELDS,
}


class Reasoning(StrEnum):
    HIDDEN = "hidden"
    FIELD = "field"
    INLINE = "inline"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(AskedAnswer):
    reasoning: Reasoning

    def stream_encoder(self, *, request_id: str, clock: UnixClock) -> Encoder:
        head = self.head("chatcmpl", "chat.completion.chunk", request_id, clock)
        return self.reporting(ChatStreamEncoder(head, self, reasoning=self.reasoning))

    def body_encoder(self, *, request_id: str, clock: UnixClock) -> BodyEncoder:
        shows_logprobs = self.generation.sampling.top_logprobs is not None
        choices = [
            ChatChoice(self.reasoning, shows_logprobs=shows_logprobs)
            for _ in range(self.generation.n)
        ]
        return BodyEncoder(
            self, self.head("chatcmpl", "chat.completion", request_id, clock), choices
        )


def parse(body: bytes, context: RequestContext = NO_CONTEXT) -> ChatRequest:
    read = f.read_body(body, FIELDS)
    reasoning = _shown_reasoning(read, context)
    chat, demanded = chat_input(read, reasoning), output_format(read)
    check_with_tools(demanded, may_call=bool(chat.tools) and chat.tool_choice.mode != "none")
    asked = openai_fields.asked_answer(
        read,
        context,
        input=chat,
        max_tokens=_max_tokens(read),
        top_logprobs=openai_fields.top_logprobs(read),
        output_format=demanded,
        prediction=read.get("prediction", {}).get("content", ""),
    )
    return ChatRequest(**asked, reasoning=reasoning)


def chat_input(read: dict[str, Any], reasoning: Reasoning) -> ChatInput:
    offered, choice = turns.chosen_tools(
        read.get("tools", []), read.get("tool_choice", turns.FREELY)
    )
    effort = read.get("reasoning_effort")
    messages, answer_start = _continued(read, choice)
    return ChatInput(
        messages=messages,
        answer_start=answer_start,
        adds_generation_prompt=bool(answer_start) or read.get("add_generation_prompt", True),
        tools=offered,
        tool_choice=choice,
        parallel_tool_calls=read.get("parallel_tool_calls", True),
        template_kwargs=read.get("chat_template_kwargs", {}),
        thinking=None if effort is None else effort in THINKING_EFFORTS,
        reasoning_effort=effort if effort in THINKING_EFFORTS else None,
        shows_reasoning=reasoning is not Reasoning.HIDDEN,
    )


def _continued(read: dict[str, Any], choice: ToolChoice) -> tuple[list[ChatMessage], str]:
    messages: list[ChatMessage] = read["messages"]
    if not read.get("continue_final_message", False):
        return messages, ""
    messages, answer_start = without_answer_start(messages)
    hindrances = {
        "add_generation_prompt": read.get("add_generation_prompt", False),
        "tool_choice": choice.mode == "required",
        "response_format": output_format(read) is not None,
        "messages": not answer_start,
    }
    for name, is_in_the_way in hindrances.items():
        if is_in_the_way:
            raise InvalidRequestError(
                "'continue_final_message' continues the text of the assistant's last turn; "
                f"'{name}' does not allow that.",
                param=name,
            )
    return messages, answer_start


def _shown_reasoning(read: dict[str, Any], context: RequestContext) -> Reasoning:
    if openai_fields.flag_header(context, INLINE_REASONING_HEADER):
        return Reasoning.INLINE
    return Reasoning.FIELD if read.get("include_reasoning", False) else Reasoning.HIDDEN


def _max_tokens(read: dict[str, Any]) -> int | None:
    old: int | None = read.get("max_tokens")
    new: int | None = read.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise InvalidRequestError(
            f"'max_tokens' ({old}) and 'max_completion_tokens' ({new}) differ; give one of them.",
            param="max_tokens",
        )
    return old if new is None else new


def added(event: Event, reasoning: Reasoning) -> dict[str, Any]:
    """Of all events but a ``Delta``."""
    match event:
        case ReasoningDelta() if reasoning is not Reasoning.HIDDEN:
            return _reasoning(event, reasoning)
        case ToolCallStarted():
            function = {"name": event.name, "arguments": ""}
            call = {"id": event.call_id, "type": "function", "function": function}
            return {"tool_calls": [{"index": event.call_index, **call}]}
        case ToolCallDelta():
            piece = {"arguments": event.arguments}
            return {"tool_calls": [{"index": event.call_index, "function": piece}]}
    return {}


def _reasoning(event: ReasoningDelta, reasoning: Reasoning) -> dict[str, Any]:
    if reasoning is Reasoning.FIELD:
        return {"reasoning_content": event.text} if event.text else {}
    closes = event.closes or event.missing_close or ""
    inline = f"{event.opens or ''}{event.text}{closes}"
    return {"content": inline} if inline else {}


ROLE: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}


class ChatStreamEncoder(StreamEncoder):
    """A role chunk for each choice, at most one for each event, usage where requested, [DONE]."""

    text, text_end = b'"delta":{"content":', b"}"
    empty: dict[str, Any] = {"delta": {}}

    def __init__(self, head: dict[str, Any], asked: AskedAnswer, *, reasoning: Reasoning) -> None:
        super().__init__(head, asked.usage, asked.generation.n)
        self._reasoning = reasoning

    def _begin(self, event: Accepted) -> bytes:
        ids = event.prompt_token_ids
        more = None if ids is None else {"prompt_token_ids": ids[0]}
        role = {"delta": ROLE}
        return b"".join([self._chunk(index, role, more_head=more) for index in self._indices])

    def _other(self, event: Event) -> bytes:
        match event:
            case Delta():
                tokens = [token_object(token) for token in event.logprobs or ()]
                logprobs = {"content": tokens, "refusal": None}
                delta = {"delta": {"content": event.text}}
                return self._chunk(event.index, delta, logprobs=logprobs)
            case ReasoningDelta() | ToolCallStarted() | ToolCallDelta():
                delta = added(event, self._reasoning)
                return self._chunk(event.index, {"delta": delta}) if delta else b""
        return b""


class ChatChoice(Choice):
    def __init__(self, reasoning: Reasoning, *, shows_logprobs: bool) -> None:
        super().__init__()
        self._reasoning = reasoning
        self._texts: dict[str, list[str]] = {"content": [], "reasoning_content": []}
        self._calls: list[tuple[dict[str, Any], list[str]]] = []
        self._tokens: list[bytes] | None = [] if shows_logprobs else None

    def add(self, event: Event) -> None:
        if isinstance(event, Delta):  # most events are this one
            self._texts["content"].append(event.text)
            if self._tokens is not None:
                self._tokens += [orjson.dumps(token_object(one)) for one in event.logprobs or ()]
            return
        for name, value in added(event, self._reasoning).items():
            if name == "tool_calls":
                self._add_call(*value)
            else:
                self._texts[name].append(value)

    def _add_call(self, call: dict[str, Any]) -> None:
        index = call.pop("index")
        if index == len(self._calls):
            self._calls.append((call, []))
        self._calls[index][1].append(call["function"]["arguments"])

    def content(self) -> dict[str, Any]:
        content = "".join(self._texts["content"])
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if self._calls and not content else content,
            "refusal": None,
            "annotations": [],
        }
        if self._reasoning is Reasoning.FIELD:
            message["reasoning_content"] = "".join(self._texts["reasoning_content"]) or None
        if self._calls:
            message["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": "".join(pieces)}}
                for call, pieces in self._calls
            ]
        return {"message": message}

    def logprobs(self) -> dict[str, Any] | None:
        if self._tokens is None:
            return None
        return {"content": json_array(self._tokens), "refusal": None}
