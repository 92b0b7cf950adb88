"""Anthropic's messages dialect: bytes in, one request out; events in, frames out.

    parse(body) ─▶ MessagesRequest(generation, stream, style)
    parse_count(body) ─▶ TokenCountRequest ─▶ count_body(tokens)

Beta features need no header here: a field is honoured or refused by its value. Source:
https://docs.anthropic.com/en/api/messages. Pure.
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
    TokenCountRequest,
)
from inference.protocol.sampling import SamplingOptions
from inference.wire import fields as f
from inference.wire.anthropic import fields as options
from inference.wire.anthropic.content import BLOCK_FIELDS, REFERENCE_FIELDS, SOURCE_FIELDS
from inference.wire.anthropic.encoders import MessageBodyEncoder, MessageStreamEncoder, Style
from inference.wire.anthropic.turns import (
    MESSAGE_FIELDS,
    chat_messages,
    marks_of_tools,
    messages,
    system,
    tool_references,
)
from inference.wire.dialect import NO_CONTEXT, RequestContext, UnixClock
from inference.wire.errors import InvalidRequestError
from inference.wire.parts import without_answer_start

MAX_STOP_SEQUENCES = 64
INTERLEAVED_BETA = "interleaved-thinking"
"""The beta with which a thinking budget spans several answers and may be more than
``max_tokens``."""

FIELDS = f.table(
    f.required(
        "model",
        f.model_name,
        "A catalogue model's name or an alias (one for each name a client insists on).",
    ),
    f.required(
        "max_tokens",
        f.integer(1, options.MAX_TOKENS),
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
    f.honoured("tools", options.tools, "Custom tools; others are refused by their type."),
    f.honoured(
        "tool_choice", options.tool_choice, "auto, any, tool, none; disable_parallel_tool_use."
    ),
    f.honoured(
        "thinking", options.thinking, "enabled with budget_tokens, adaptive, disabled; display."
    ),
    f.honoured(
        "output_config",
        options.OUTPUT_CONFIG_FIELDS.read,
        "format json_schema; effort, for the template.",
    ),
    f.honoured("output_format", options.output_format, "The older name of output_config.format."),
    options.CACHE_CONTROL,
    f.honoured("metadata", options.METADATA_FIELDS.read, "user_id: the end user."),
    f.neutral("service_tier", f.one_of("auto", "standard_only"), "There is one tier."),
    f.fixed("speed", "standard", "there is one speed: standard"),
    f.neutral(
        "context_management",
        options.CONTEXT_MANAGEMENT_FIELDS.read,
        "No edits, or clear_thinking_20251015 that keeps all.",
    ),
    f.neutral(
        "diagnostics",
        options.DIAGNOSTICS_FIELDS.read,
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
    options.THREAD,
    f.refused("user_profile_id", "there are no user profiles"),
    f.refused("workspace_id", "there are no workspaces"),
)
NESTED_FIELDS: dict[str, Mapping[str, f.Field]] = {
    **{f"{role} messages": fields for role, fields in MESSAGE_FIELDS.items()},
    **{f"{kind} blocks": fields for kind, fields in BLOCK_FIELDS.items()},
    **{f"source {kind} of an image": fields for kind, fields in SOURCE_FIELDS.items()},
    "tool_reference blocks of a result": REFERENCE_FIELDS,
    "tools": options.TOOL_FIELDS,
    **{f"tool_choice {kind}": fields for kind, fields in options.CHOICE_FIELDS.items()},
    **{f"thinking {kind}": fields for kind, fields in options.THINKING_FIELDS.items()},
    "output_config": options.OUTPUT_CONFIG_FIELDS,
    "output_config.format": options.JSON_FORMAT_FIELDS,
    "context_management": options.CONTEXT_MANAGEMENT_FIELDS,
    "clear_thinking_20251015": options.CLEAR_THINKING_FIELDS,
    "cache_control": options.CACHE_CONTROL_FIELDS,
    "metadata": options.METADATA_FIELDS,
    "diagnostics": options.DIAGNOSTICS_FIELDS,
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
    thinking: options.Thinking = read.get("thinking", options.Thinking())
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
        input=_chat_input(read, read.get("thinking", options.Thinking()))[0],
        output_format=_output_format(read),
    )


def count_body(num_tokens: int) -> bytes:
    return orjson.dumps({"input_tokens": num_tokens})


def _chat_input(
    read: dict[str, Any], thinking: options.Thinking
) -> tuple[ChatInput, list[CacheMark]]:
    choice: options.Choice = read.get("tool_choice", options.Choice())
    turns = read["messages"]
    declared = read.get("tools", [])
    offered = options.offered_tools(declared, tool_references(turns))
    options.check_choice(choice.tool_choice, offered)
    marked = chat_messages(turns, read.get("system", ()))
    chat, answer_start = without_answer_start(marked.messages)
    if answer_start:
        _check_prefill(read, choice, thinking)
    marks = [*marks_of_tools([tool.name for tool in offered], declared), *marked.marks]
    if (ttl := options.cache_of(read)) is not None:
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


def _check_prefill(
    read: dict[str, Any], choice: options.Choice, thinking: options.Thinking
) -> None:
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


def _check_budget(thinking: options.Thinking, max_tokens: int, context: RequestContext) -> None:
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
