"""What the endpoints speak: one file for each API, and one line here. Loaded when first needed,
because the SDKs take most of a second to import."""

from __future__ import annotations

import importlib

from helexa_acp.config import Endpoint, WireApi
from helexa_acp.wire.base import Wire

MODULES: dict[WireApi, str] = {
    "openai-chat": "helexa_acp.wire.openai_chat",
    "openai-responses": "helexa_acp.wire.openai_responses",
    "anthropic-messages": "helexa_acp.wire.anthropic_messages",
}


def open_wire(endpoint: Endpoint) -> Wire:
    wire: Wire = importlib.import_module(MODULES[endpoint.wire_api]).open_wire(endpoint)
    return wire
