"""Compacts a conversation: a request for a summary out of it, and the items that replace it out of
the summary.

    parse(body) ─▶ ResponsesRequest ─▶ continued ─▶ summary_request ─▶ body(items, summary)

The user's and the developer's messages stay. The model's messages, calls and results become one
``compaction`` item with the model's summary, or with the substitute of
``openai.responses.summary``. Pure.

Source: https://developers.openai.com/api/reference/resources/responses/methods/compact.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import orjson

from inference.protocol.events import Usage
from inference.protocol.generation import ChatInput, ChatMessage, GenerationRequest
from inference.protocol.sampling import SamplingOptions
from inference.wire.common.fields import read_fields, read_json_object, table
from inference.wire.dialect import NO_CONTEXT, RequestContext
from inference.wire.errors import MissingParameterError
from inference.wire.openai.responses.input import InputItem, with_ids
from inference.wire.openai.responses.object import response_id, usage_object
from inference.wire.openai.responses.reasoning import carried
from inference.wire.openai.responses.request import FIELDS as RESPONSE_FIELDS
from inference.wire.openai.responses.request import ResponsesRequest, request_of
from inference.wire.openai.responses.summary import Summary
from inference.wire.openai.responses.turns import Message

SUMMARISE = (
    "Summarise this conversation, so that you can go on from the summary without the conversation "
    "itself. Say what was asked for and decided, what was done and found, with every name, path, "
    "number and exact value that may be needed again, and what is left to do. Answer with the "
    "summary alone, in at most 400 words."
)
MAX_SUMMARY_TOKENS = 1024
"""Twice what it is asked to be: a small model that continues beyond that only repeats itself."""
MIN_SUMMARY_TOKENS = 256
BYTES_PER_TOKEN = 4
"""A usual rate. A summary as long as what it stands for is none."""
TEMPERATURE, TOP_P = 0.2, 0.9
"""A summary is to be exact, whatever the model's own default is."""

FIELDS = table(
    *(
        RESPONSE_FIELDS[name]
        for name in (
            "model",
            "input",
            "instructions",
            "previous_response_id",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "service_tier",
            "image",
        )
    )
)


def parse(body: bytes, _context: RequestContext = NO_CONTEXT) -> ResponsesRequest:
    """Raises ``ApiError`` (400)."""
    read = read_fields(read_json_object(body), FIELDS, required=("model",))
    if "input" not in read and "previous_response_id" not in read:
        raise MissingParameterError("input")
    return request_of({"input": [], **read})


def summary_request(request: ResponsesRequest) -> GenerationRequest:
    """``request``: whole, see ``ResponsesRequest``."""
    chat = request.generation.input
    assert isinstance(chat, ChatInput), "Responses requests are chats"
    ask = ChatMessage(role="user", content=SUMMARISE)
    asking = msgspec.structs.replace(chat, messages=[*chat.messages, ask], thinking=False)
    num_bytes = sum(len(message.content or "") for message in chat.messages)
    max_tokens = min(MAX_SUMMARY_TOKENS, max(MIN_SUMMARY_TOKENS, num_bytes // BYTES_PER_TOKEN))
    bounded = SamplingOptions(temperature=TEMPERATURE, top_p=TOP_P, max_tokens=max_tokens)
    return msgspec.structs.replace(
        request.generation, input=asking, sampling=bounded, ends_at_context=True
    )


def body(
    conversation: Sequence[InputItem],
    summary: Summary,
    usage: Usage,
    *,
    request_id: str,
    created_unix_s: int,
) -> bytes:
    """``conversation``: all that was summarised."""
    kept = [item for item in conversation if _stays(item)]
    compaction = {
        "id": f"cmp_{request_id}",
        "type": "compaction",
        "encrypted_content": carried(summary.text),
    }
    return orjson.dumps(
        {
            "id": response_id(request_id),
            "object": "response.compaction",
            "created_at": created_unix_s,
            "output": [*(item.object for item in with_ids(kept, request_id)), compaction],
            "usage": usage_object(usage),
            "summary": {"status": summary.status, "message": summary.message},
        }
    )


def _stays(item: InputItem) -> bool:
    return isinstance(item.part, Message) and item.part.role != "assistant"
