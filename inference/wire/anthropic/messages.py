"""Anthropic's messages dialect (https://docs.anthropic.com/en/api/messages).

Beta features need no header: a field is honoured or refused by its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from inference.protocol.generation import (
    CacheMark,
    ChatInput,
    GenerationRequest,
    OutputFormat,
    SamplingOptions,
    TokenCountRequest,
)
from inference.wire import fields as f
from inference.wire.anthropic.answers import (
    Display,
    MessageBodyEncoder,
    MessageStreamEncoder,
    Style,
)
from inference.wire.anthropic.content import (
    BLOCK_FIELDS,
    CACHE_CONTROL,
    CACHE_CONTROL_FIELDS,
    REFERENCE_FIELDS,
    SOURCE_FIELDS,
    cache_of,
    type_field,
)
from inference.wire.anthropic.turns import (
    CHOICE_FIELDS,
    MESSAGE_FIELDS,
    TOOL_FIELDS,
    Choice,
    chat_messages,
    check_choice,
    marks_of_tools,
    messages,
    offered_tools,
    system,
    tool_choice,
    tool_references,
    tools,
)
from inference.wire.dialect import NO_CONTEXT, RequestContext, UnixClock
from inference.wire.errors import InvalidRequestError, ThreadUnsupportedError
from inference.wire.parts import without_answer_start

MAX_TOKENS = 2**31 - 1
MIN_THINKING_TOKENS = 1024
MAX_STOP_SEQUENCES = 64
INTERLEAVED_BETA = "interleaved-thinking"
"""With this beta a thinking budget spans several answers and may exceed ``max_tokens``."""

_NO_THREADS = "conversations are not kept here"


def _thread(_value: Any, path: str) -> Any:
    raise ThreadUnsupportedError(path, _NO_THREADS)


THREAD = f.Field("thread", f.Support.REFUSED, _thread, _NO_THREADS)

METADATA_FIELDS = f.table(
    f.honoured("user_id", f.text(4096), "The end user, recorded where the key may name one.")
)
DIAGNOSTICS_FIELDS = f.table(f.neutral("previous_message_id", f.text(256), "Not compared."))


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """``wanted`` is ``None`` where the client leaves it to the model."""

    display: Display = "hidden"
    wanted: bool | None = None
    is_adaptive: bool = False
    budget_tokens: int | None = None


_display = f.honoured("display", f.one_of("summarized", "omitted"), "summarized: shown whole.")
THINKING_FIELDS = {
    "enabled": f.table(
        type_field("enabled"),
        f.required(
            "budget_tokens",
            f.integer(MIN_THINKING_TOKENS, MAX_TOKENS),
            "At least 1024, less than max_tokens; the thinking block ends there.",
        ),
        _display,
    ),
    "adaptive": f.table(type_field("adaptive"), _display),
    "disabled": f.table(type_field("disabled")),
}


def read_thinking(value: Any, path: str) -> Thinking:
    known = ", ".join(THINKING_FIELDS)
    kind, read = f.read_kind(
        value, path, THINKING_FIELDS, lambda kind: f"'{kind}' is none of {known}"
    )
    if kind == "disabled":
        return Thinking()
    return Thinking(
        display="omitted" if read.get("display") == "omitted" else "shown",
        wanted=True if kind == "enabled" else None,
        is_adaptive=kind == "adaptive",
        budget_tokens=read.get("budget_tokens"),
    )


JSON_FORMAT_FIELDS = f.table(
    type_field("json_schema"),
    f.required("schema", f.json_schema, "What the answer's JSON must be."),
)


def read_output_format(value: Any, path: str) -> OutputFormat:
    read = JSON_FORMAT_FIELDS.read(value, path)
    return OutputFormat(path=f"{path}.schema", schema=read["schema"])


OUTPUT_CONFIG_FIELDS = f.table(
    f.honoured(
        "effort",
        f.one_of("low", "medium", "high", "xhigh", "max"),
        "Handed to the chat template as reasoning_effort.",
    ),
    f.honoured("format", read_output_format, "type json_schema with its schema."),
    f.refused("task_budget", "budgets over several requests are not kept"),
)


_keeps_all = f.only("all", {"type": "all"}, reason="only all: nothing is cleared here")
CLEAR_THINKING_FIELDS = f.table(
    type_field("clear_thinking_20251015"), f.neutral("keep", _keeps_all, "all")
)


def _context_edit(value: Any, path: str) -> dict[str, Any]:
    tables = {"clear_thinking_20251015": CLEAR_THINKING_FIELDS}
    return f.read_kind(
        value, path, tables, lambda kind: f"'{kind}' is not done; contexts are never edited here"
    )[1]


CONTEXT_MANAGEMENT_FIELDS = f.table(
    f.neutral(
        "edits", f.array(_context_edit), "Those of type clear_thinking_20251015 that keep all."
    )
)


FIELDS = f.table(
    f.required(
        "model",
        f.model_name,
        "A catalogue model's name or an alias (one for each name a client insists on).",
    ),
    f.required(
        "max_tokens",
        f.integer(1, MAX_TOKENS),
        "Required. Over what the context has left: the answer may end there, with "
        "model_context_window_exceeded; over the operator's bound: there, with max_tokens.",
    ),
    f.required(
        "messages",
        messages,
        "Turns, one of the user's at least; text of the assistant at the end starts the answer.",
    ),
    f.honoured(
        "system",
        system,
        "A string or text blocks; a first one of x-anthropic-billing-header is left out.",
    ),
    f.honoured("temperature", f.number(0, 1), "0 to 1; under 0.00001 is greedy."),
    f.honoured("top_p", f.number(0, 1), "0 to 1."),
    f.honoured("top_k", f.integer(0, f.MAX_TOKEN_ID), "0 is off."),
    f.honoured("stop_sequences", f.array(f.text(min_chars=1), MAX_STOP_SEQUENCES), "Up to 64."),
    f.honoured("stream", f.flag, "Server-sent events instead of one body."),
    f.honoured("tools", tools, "Custom tools; others are refused by their type."),
    f.honoured("tool_choice", tool_choice, "auto, any, tool, none; disable_parallel_tool_use."),
    f.honoured(
        "thinking", read_thinking, "enabled with budget_tokens, adaptive, disabled; display."
    ),
    f.honoured(
        "output_config",
        OUTPUT_CONFIG_FIELDS.read,
        "format json_schema; effort, for the template.",
    ),
    f.honoured("output_format", read_output_format, "The older name of output_config.format."),
    CACHE_CONTROL,
    f.honoured("metadata", METADATA_FIELDS.read, "user_id: the end user."),
    f.neutral("service_tier", f.one_of("auto", "standard_only"), "There is one tier."),
    f.fixed("speed", "standard", "there is one speed: standard"),
    f.neutral(
        "context_management",
        CONTEXT_MANAGEMENT_FIELDS.read,
        "No edits, or clear_thinking_20251015 that keeps all.",
    ),
    f.neutral(
        "diagnostics",
        DIAGNOSTICS_FIELDS.read,
        "Answered with null: nothing is compared.",
    ),
    f.fixed("mcp_servers", [], "this server calls no MCP servers"),
    f.fixed("fallbacks", [], "no other model answers instead"),
    f.refused("betas", "betas are named in the anthropic-beta header"),
    f.refused("billing_policy", "no other party can be billed"),
    f.refused("compaction", "conversations are not summarised here"),
    f.refused("container", "there are no containers"),
    f.refused("fallback_credit_token", "no other model answers instead"),
    f.refused("inference_geo", "where a model runs is the operator's choice"),
    THREAD,
    f.refused("user_profile_id", "there are no user profiles"),
    f.refused("workspace_id", "there are no workspaces"),
)
NESTED_FIELDS: dict[str, Mapping[str, f.Field]] = {
    **{f"{role} messages": fields for role, fields in MESSAGE_FIELDS.items()},
    **{f"{kind} blocks": fields for kind, fields in BLOCK_FIELDS.items()},
    **{f"source {kind} of an image": fields for kind, fields in SOURCE_FIELDS.items()},
    "tool_reference blocks of a result": REFERENCE_FIELDS,
    "tools": TOOL_FIELDS,
    **{f"tool_choice {kind}": fields for kind, fields in CHOICE_FIELDS.items()},
    **{f"thinking {kind}": fields for kind, fields in THINKING_FIELDS.items()},
    "output_config": OUTPUT_CONFIG_FIELDS,
    "output_config.format": JSON_FORMAT_FIELDS,
    "context_management": CONTEXT_MANAGEMENT_FIELDS,
    "clear_thinking_20251015": CLEAR_THINKING_FIELDS,
    "cache_control": CACHE_CONTROL_FIELDS,
    "metadata": METADATA_FIELDS,
    "diagnostics": DIAGNOSTICS_FIELDS,
}

COUNTED = (
    *("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config"),
    *("output_format", "cache_control", "context_management", "mcp_servers", "speed"),
    *("betas", "billing_policy", "compaction", "user_profile_id", "workspace_id"),
)
COUNT_FIELDS = f.table(*(FIELDS[name] for name in COUNTED))


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesRequest:
    generation: GenerationRequest
    stream: bool
    style: Style

    def stream_encoder(self, *, request_id: str, clock: UnixClock) -> MessageStreamEncoder:
        return MessageStreamEncoder(self.generation.model, self.style, request_id)

    def body_encoder(self, *, request_id: str, clock: UnixClock) -> MessageBodyEncoder:
        return MessageBodyEncoder(self.generation.model, self.style, request_id)


def parse(body: bytes, context: RequestContext = NO_CONTEXT) -> MessagesRequest:
    read = f.read_body(body, FIELDS)
    thinking: Thinking = read.get("thinking", Thinking())
    _check_budget(thinking, read["max_tokens"], context)
    chat_input, marks = _chat_input(read, thinking)
    generation = GenerationRequest(
        model=read["model"],
        input=chat_input,
        sampling=SamplingOptions(
            max_tokens=read["max_tokens"],
            temperature=read.get("temperature"),
            top_p=read.get("top_p"),
            top_k=read.get("top_k"),
        ),
        stop=read.get("stop_sequences", []),
        output_format=_output_format(read),
        ends_at_context=True,
        end_user=read.get("metadata", {}).get("user_id", ""),
        cache_marks=marks,
    )
    style = Style(thinking=thinking.display, reports_edits="context_management" in read)
    return MessagesRequest(generation=generation, stream=read.get("stream", False), style=style)


def parse_count(body: bytes, _context: RequestContext = NO_CONTEXT) -> TokenCountRequest:
    read = f.read_body(body, COUNT_FIELDS)
    return TokenCountRequest(
        model=read["model"],
        input=_chat_input(read, read.get("thinking", Thinking()))[0],
        output_format=_output_format(read),
    )


def count_body(num_tokens: int) -> bytes:
    return orjson.dumps({"input_tokens": num_tokens})


def _chat_input(read: dict[str, Any], thinking: Thinking) -> tuple[ChatInput, list[CacheMark]]:
    choice: Choice = read.get("tool_choice", Choice())
    turns = read["messages"]
    declared = read.get("tools", [])
    offered = offered_tools(declared, tool_references(turns))
    check_choice(choice.tool_choice, offered)
    marked = chat_messages(turns, read.get("system", ()))
    chat, answer_start = without_answer_start(marked.messages)
    if answer_start:
        _check_prefill(read, choice, thinking)
    marks = [*marks_of_tools([tool.name for tool in offered], declared), *marked.marks]
    if (ttl := cache_of(read)) is not None:
        marks.append(CacheMark(ttl=ttl))
    chat_input = ChatInput(
        messages=chat,
        answer_start=answer_start,
        tools=offered,
        tool_choice=choice.tool_choice,
        parallel_tool_calls=choice.parallel,
        thinking=thinking.wanted,
        adaptive_thinking=thinking.is_adaptive,
        thinking_budget_tokens=thinking.budget_tokens,
        reasoning_effort=read.get("output_config", {}).get("effort"),
        shows_reasoning=thinking.display != "hidden",
    )
    return chat_input, marks


def _check_prefill(read: dict[str, Any], choice: Choice, thinking: Thinking) -> None:
    hindrances = {
        "thinking": thinking.display != "hidden",
        "tool_choice": choice.tool_choice.mode == "required",
        "output_config.format": _output_format(read) is not None,
    }
    for name, is_given in hindrances.items():
        if is_given:
            raise InvalidRequestError(
                f"'messages' ends with the start of the answer, which '{name}' decides too.",
                param="messages",
            )


def _check_budget(thinking: Thinking, max_tokens: int, context: RequestContext) -> None:
    budget = thinking.budget_tokens
    if budget is None or budget < max_tokens:
        return
    if INTERLEAVED_BETA in context.headers.get("anthropic-beta", ""):
        return
    raise InvalidRequestError(
        f"'thinking.budget_tokens' ({budget}) must be less than 'max_tokens' ({max_tokens}).",
        param="thinking.budget_tokens",
    )


def _output_format(read: dict[str, Any]) -> OutputFormat | None:
    old: OutputFormat | None = read.get("output_format")
    new: OutputFormat | None = read.get("output_config", {}).get("format")
    if old is not None and new is not None:
        raise InvalidRequestError(
            "'output_format' and 'output_config.format' are the same field; give one of them.",
            param="output_format",
        )
    return new if old is None else old
