"""How many tokens the prompt of a response would have: bytes in, the request that would be rendered
out; a number in, one body out.

    parse(body) ─▶ ResponsesRequest ─▶ continued ─▶ count_of ─▶ TokenCountRequest ─▶ body(tokens)

Source: https://platform.openai.com/docs/api-reference/responses/input-tokens.
"""

from __future__ import annotations

import orjson

from inference.protocol.generation import ChatInput, TokenCountRequest
from inference.wire.common.fields import (
    neutral,
    one_of,
    read_fields,
    read_json_object,
    refused,
    table,
)
from inference.wire.dialect import NO_CONTEXT, RequestContext
from inference.wire.openai.responses.request import FIELDS as RESPONSE_FIELDS
from inference.wire.openai.responses.request import ResponsesRequest, request_of

FIELDS = table(
    *(
        RESPONSE_FIELDS[name]
        for name in (
            "model",
            "input",
            "instructions",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "text",
            "reasoning",
            "previous_response_id",
            "conversation",
        )
    ),
    neutral("truncation", one_of("auto", "disabled"), "All of it is counted."),
    refused("personality", "models here have no such presets; put it into instructions"),
)


def parse(body: bytes, _context: RequestContext = NO_CONTEXT) -> ResponsesRequest:
    """Raises ``ApiError`` (400)."""
    return request_of(read_fields(read_json_object(body), FIELDS, required=("model", "input")))


def count_of(request: ResponsesRequest) -> TokenCountRequest:
    """``request``: whole, see ``ResponsesRequest``."""
    chat = request.generation.input
    assert isinstance(chat, ChatInput), "Responses requests are chats"
    return TokenCountRequest(
        model=request.generation.model,
        input=chat,
        output_format=request.generation.output_format,
    )


def body(num_tokens: int) -> bytes:
    return orjson.dumps({"object": "response.input_tokens", "input_tokens": num_tokens})
