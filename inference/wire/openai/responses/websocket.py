"""The Responses dialect over a WebSocket: one message in, one request out; events out as messages.

    response.create ─▶ parse_message ─▶ SocketRequest
    frames of the stream encoder ─▶ messages_of ─▶ a JSON text each

HTTP's fields of transport, ``stream`` and ``background``, have one value here. Pure.

Source: https://developers.openai.com/api/docs/guides/websocket-mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from inference.wire import fields as f
from inference.wire.error_envelopes import openai_responses_errors
from inference.wire.errors import ApiError
from inference.wire.openai.responses.request import FIELDS as RESPONSE_FIELDS
from inference.wire.openai.responses.request import ResponsesRequest, request_of

CREATE = "response.create"
_OVER_HTTP = ("stream", "stream_options", "background")

OWN_FIELDS = f.table(
    f.required("type", f.one_of(CREATE), CREATE),
    f.honoured(
        "generate", f.flag, "false: the prompt is computed and cached, and nothing answered."
    ),
    f.fixed("stream", True, "a socket always streams"),
    f.fixed("background", False, "a response ends with its socket"),
)
FIELDS = f.table(
    *OWN_FIELDS.values(),
    *(field for name, field in RESPONSE_FIELDS.items() if name not in _OVER_HTTP),
)
_DATA = b"\ndata: "


@dataclass(frozen=True, slots=True)
class SocketRequest:
    """``generates``: ``False`` only prepares for requests that continue it."""

    response: ResponsesRequest
    generates: bool


def parse_message(message: bytes) -> SocketRequest:
    """Raises ``ApiError`` (400) for everything that is not a request this server honours in
    full."""
    read = f.read_body(message, FIELDS)
    return SocketRequest(request_of({**read, "stream": True}), read.get("generate", True))


def messages_of(frames: bytes) -> Iterator[str]:
    for frame in frames.split(b"\n\n"):
        if frame:
            yield frame.partition(_DATA)[2].decode()


def error_message(error: ApiError) -> str:
    kind, fields = openai_responses_errors.error_event(error)
    message = {"type": kind, "status": error.status, **fields, "sequence_number": 0}
    return orjson.dumps(message).decode()
