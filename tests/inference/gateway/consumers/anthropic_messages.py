"""Anthropic's messages as tests send them, and one that is too long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from inference.protocol.events import Event, Failed, Failure, Usage
from inference.protocol.generation import Submit
from tests.inference.gateway.bodies import chat_body

MESSAGES = "/v1/messages"
USAGE = Usage(prompt_tokens=20, completion_tokens=9, cached_tokens=16, reasoning_tokens=3)
messages_body = partial(chat_body, max_tokens=50)


async def too_long(submit: Submit) -> AsyncIterator[list[Event]]:
    failure = Failure(
        code="context_length_exceeded",
        message="this model's maximum context length is 2048 tokens and the prompt has 3000",
        param="messages",
    )
    yield [Failed(request_id=submit.request_id, failure=failure)]
