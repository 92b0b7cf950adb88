"""OpenAI's Responses dialect: bytes in, one request out; events in, named frames out.

    parse(body) ─▶ ResponsesRequest ─▶ continued(history, references) ─▶ generation
    response.create, over a WebSocket ─▶ parse_message ─▶ SocketRequest

The server of a request loads stored items and calls ``continued``. Sources:
https://platform.openai.com/docs/api-reference/responses/create and …/input-tokens,
https://developers.openai.com/api/docs/guides/websocket-mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import orjson

from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    GenerationRequest,
    TokenCountRequest,
)
from inference.wire import fields as f
from inference.wire.dialect import NO_CONTEXT, RequestContext, UnixClock
from inference.wire.error_envelopes import openai_responses_errors
from inference.wire.errors import ApiError, InvalidRequestError
from inference.wire.openai import fields as openai_fields
from inference.wire.openai.chat_turns import FREELY, PARALLEL_TOOL_CALLS, chosen_tools
from inference.wire.responses import fields as given
from inference.wire.responses import tools as given_tools
from inference.wire.responses.events import ResponseBodyEncoder, ResponseStreamEncoder
from inference.wire.responses.input import (
    ITEM_FIELDS,
    MAX_ID_CHARS,
    InputItem,
    Referred,
    chat_messages,
    check_results,
    earlier_turns,
    items,
    resolved,
)
from inference.wire.responses.output import AnswerSettings, answer_settings

SHARED = (
    *("model", "stream", "user", "temperature", "top_p", "presence_penalty"),
    *("frequency_penalty", "top_k", "seed"),
)
FIELDS = f.table(
    *(openai_fields.SHARED_FIELDS[name] for name in SHARED),
    f.required(
        "input",
        items,
        "A string, or message, function_call, function_call_output, reasoning, compaction and "
        "item_reference items; text only.",
    ),
    f.honoured("instructions", f.text(), "A system turn before the others; not carried over."),
    f.honoured(
        "tools",
        given_tools.tools,
        "Functions and namespaces of them; every hosted tool is refused by name.",
    ),
    f.honoured(
        "tool_choice", given_tools.tool_choice, "auto, none, required, a function or allowed_tools."
    ),
    PARALLEL_TOOL_CALLS,
    f.honoured(
        "text", given.text_settings, "format: text, json_object or json_schema; verbosity medium."
    ),
    f.honoured(
        "reasoning",
        given.reasoning,
        "effort: none and minimal turn thinking off, others on; summary auto or detailed: the "
        "reasoning itself comes as the summary, else as content.",
    ),
    f.honoured("max_output_tokens", f.integer(1, openai_fields.MAX_TOKENS), "At least 1."),
    f.honoured("top_logprobs", f.integer(0, openai_fields.MAX_TOP_LOGPROBS), "0 to 20."),
    f.honoured(
        "include",
        given.include,
        "message.output_text.logprobs and reasoning.encrypted_content; the others ask for parts "
        "that no answer here has.",
    ),
    f.honoured("metadata", openai_fields.metadata, "Kept with the response."),
    f.honoured("store", f.flag, "true, the default: the response can be read and built on later."),
    f.honoured("previous_response_id", f.text(MAX_ID_CHARS, min_chars=1), "A stored response."),
    f.honoured(
        "background", f.flag, "Answered at once, worked on without its client; needs store."
    ),
    f.honoured(
        "stream_options", given.STREAM_OPTIONS.read, "include_obfuscation; only with stream."
    ),
    f.honoured(
        "truncation",
        f.one_of("auto", "disabled"),
        "auto: whole turns, the oldest first, are left out where the conversation does not fit; "
        "truncated.dropped_turns of the response counts them.",
    ),
    f.neutral(
        "max_tool_calls", f.integer(1, 2**31 - 1), "Counts hosted tools' calls: there are none."
    ),
    f.neutral("client_metadata", f.json_object, "Codex's labels of its session; kept nowhere."),
    f.neutral("prompt_cache_key", f.text(1024), "Prefixes are shared by content; echoed."),
    *openai_fields.SERVICE_FIELDS,
    f.refused("access_programs", "there are none here"),
    f.refused("context_management", "nothing is compacted"),
    f.refused("conversation", "use previous_response_id"),
    f.refused("image", "images are parts of input"),
    f.refused("prompt", "prompts are not stored; send the text itself"),
)
NESTED_FIELDS: dict[str, Mapping[str, f.Field]] = {
    **{f"{kind} items": fields for kind, fields in ITEM_FIELDS.items()},
    **{f"{kind} parts": fields for kind, fields in given.PART_FIELDS.items()},
    "tools": given_tools.TOOL_FIELDS,
    "tools of type namespace": given_tools.NAMESPACE_FIELDS,
    "tool_choice of one function": given_tools.NAMED_FIELDS,
    "tool_choice of several functions": given_tools.ALLOWED_TOOLS_FIELDS,
    "text": given.TEXT_FIELDS,
    "text.format of type json_schema": given.FORMAT_FIELDS["json_schema"],
    "reasoning": given.REASONING_FIELDS,
    "stream_options": given.STREAM_OPTIONS,
    "prompt_cache_options": openai_fields.PROMPT_CACHE_FIELDS,
}

COUNTED = (
    *("model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text"),
    *("reasoning", "previous_response_id", "conversation"),
)
COUNT_FIELDS = f.table(
    *(FIELDS[name] for name in COUNTED),
    f.neutral("truncation", f.one_of("auto", "disabled"), "All of it is counted."),
    f.refused("personality", "models here have no such presets; put it into instructions"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest:
    """``generation`` is complete only with the referenced items and history: ``continued``."""

    generation: GenerationRequest
    stream: bool
    store: bool
    background: bool
    previous_response_id: str | None
    instructions: str | None
    items: list[InputItem]
    may_be_cut: bool
    settings: AnswerSettings

    @property
    def references(self) -> list[Referred]:
        return [item.part for item in self.items if isinstance(item.part, Referred)]

    def continued(
        self, history: Sequence[InputItem], stored: Mapping[str, InputItem]
    ) -> ResponsesRequest:
        """Puts ``history`` before its own turns, and ``stored`` items for references. Raises
        ``InvalidRequestError`` for a missing one, and for a result of no call."""
        own = resolved(self.items, stored)
        conversation = [*history, *own]
        check_results(conversation, len(history))
        turns = _turns(self.instructions, conversation, may_be_cut=self.may_be_cut)
        chat = msgspec.structs.replace(self.generation.input, **turns)
        generation = msgspec.structs.replace(self.generation, input=chat)
        return replace(self, items=own, generation=generation)

    def stream_encoder(self, *, request_id: str, clock: UnixClock) -> ResponseStreamEncoder:
        return ResponseStreamEncoder(self.settings, request_id, clock)

    def body_encoder(self, *, request_id: str, clock: UnixClock) -> ResponseBodyEncoder:
        return ResponseBodyEncoder(self.settings, request_id, clock)


def parse(body: bytes, context: RequestContext = NO_CONTEXT) -> ResponsesRequest:
    read = f.read_body(body, FIELDS)
    if read.get("background", False) and not read.get("store", True):
        raise InvalidRequestError("'background' requires 'store'.", param="background")
    if "stream_options" in read and not read.get("stream", False):
        raise InvalidRequestError(
            "'stream_options' is only allowed when 'stream' is true.", param="stream_options"
        )
    return request_of(read)


def request_of(read: dict[str, Any]) -> ResponsesRequest:
    """``read``: checked by ``FIELDS``; has ``model`` and ``input`` at least."""
    store, background = read.get("store", True), read.get("background", False)
    request = ResponsesRequest(
        generation=_generation(read),
        stream=read.get("stream", False),
        store=store,
        background=background,
        previous_response_id=read.get("previous_response_id"),
        instructions=read.get("instructions"),
        items=read["input"],
        may_be_cut=_may_be_cut(read),
        settings=answer_settings(read, store=store, background=background),
    )
    if request.previous_response_id is None and not request.references:
        check_results(request.items)
    return request


def _generation(read: dict[str, Any]) -> GenerationRequest:
    wanted: given.Reasoning = read.get("reasoning", given.Reasoning())
    offer: given_tools.GivenTools = read.get("tools", given_tools.NO_TOOLS)
    offered, choice = chosen_tools(offer.functions, read.get("tool_choice", FREELY))
    return GenerationRequest(
        model=read["model"],
        input=ChatInput(
            **_turns(read.get("instructions"), read["input"], may_be_cut=_may_be_cut(read)),
            tools=offer.described(offered),
            tool_choice=choice,
            parallel_tool_calls=read.get("parallel_tool_calls", True),
            thinking=wanted.thinking,
            reasoning_effort=wanted.template_effort,
            shows_reasoning=True,
        ),
        sampling=openai_fields.sampling_options(
            read, max_tokens=read.get("max_output_tokens"), top_logprobs=_top_logprobs(read)
        ),
        output_format=read.get("text", given.PLAIN_TEXT).output_format,
        end_user=openai_fields.end_user_of(read),
    )


def _turns(
    instructions: str | None, items: Sequence[InputItem], *, may_be_cut: bool
) -> dict[str, Any]:
    first = [] if instructions is None else [ChatMessage(role="system", content=instructions)]
    messages = first + chat_messages(item.part for item in items)
    return {"messages": messages, "may_lose": earlier_turns(messages) if may_be_cut else []}


def _may_be_cut(read: dict[str, Any]) -> bool:
    return bool(read.get("truncation", "disabled") == "auto")


def _top_logprobs(read: dict[str, Any]) -> int | None:
    top: int = read.get("top_logprobs", 0)
    return top if top or given.LOGPROBS in read.get("include", ()) else None


def parse_count(count_body: bytes, _context: RequestContext = NO_CONTEXT) -> ResponsesRequest:
    return request_of(f.read_body(count_body, COUNT_FIELDS))


def count_of(request: ResponsesRequest) -> TokenCountRequest:
    chat = request.generation.input
    assert isinstance(chat, ChatInput), "Responses requests are chats"
    return TokenCountRequest(
        model=request.generation.model,
        input=chat,
        output_format=request.generation.output_format,
    )


def count_body(num_tokens: int) -> bytes:
    return orjson.dumps({"object": "response.input_tokens", "input_tokens": num_tokens})


CREATE = "response.create"
_OVER_HTTP = ("stream", "stream_options", "background")
SOCKET_FIELDS = f.table(
    f.required("type", f.one_of(CREATE), CREATE),
    f.honoured(
        "generate", f.flag, "false: the prompt is computed and cached, and nothing answered."
    ),
    f.fixed("stream", True, "a socket always streams"),
    f.fixed("background", False, "a response ends with its socket"),
)
_MESSAGE_FIELDS = f.table(
    *SOCKET_FIELDS.values(),
    *(field for name, field in FIELDS.items() if name not in _OVER_HTTP),
)


@dataclass(frozen=True, slots=True)
class SocketRequest:
    """``generates``: ``False`` only prepares for requests that continue it."""

    response: ResponsesRequest
    generates: bool


def parse_message(message: bytes) -> SocketRequest:
    """Raises ``ApiError``."""
    read = f.read_body(message, _MESSAGE_FIELDS)
    return SocketRequest(request_of({**read, "stream": True}), read.get("generate", True))


def messages_of(frames: bytes) -> Iterator[str]:
    for frame in frames.split(b"\n\n"):
        if frame:
            yield frame.partition(b"\ndata: ")[2].decode()


def error_message(error: ApiError) -> str:
    kind, fields = openai_responses_errors.error_event(error)
    message = {"type": kind, "status": error.status, **fields, "sequence_number": 0}
    return orjson.dumps(message).decode()
