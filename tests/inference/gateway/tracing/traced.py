"""A chat, and the headers of clients whose requests are traced."""

from __future__ import annotations

import itertools
from typing import Any

from tests.inference.gateway.fake_metering import KEY

CHAT = "/v1/chat/completions"
QUESTION = "What is the capital of France?"
BODY: dict[str, Any] = {
    "model": "gpt-4o",
    "messages": [{"role": "user", "content": QUESTION}],
}
CLIENTS_SPAN = "00f067aa0ba902b7"
numbers = itertools.count(1)


def new_trace(*, flags: str = "01") -> tuple[str, dict[str, str]]:
    """A trace's id, and the headers of a client whose request belongs to it."""
    trace_id = f"{next(numbers):032x}"
    traceparent = f"00-{trace_id}-{CLIENTS_SPAN}-{flags}"
    return trace_id, {"authorization": f"Bearer {KEY}", "traceparent": traceparent}
