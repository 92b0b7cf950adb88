"""Which tokens an attempt is billed for whose end its client is told before its neuron is."""

from __future__ import annotations

from inference.gateway.request.event_stream import RequestStream, RequestStreams, events_lost
from inference.protocol.events import Accepted, Cancelled, Delta, Usage
from tests.inference.gateway.answers import open_stream

PROMPT_TOKENS, CACHED_TOKENS = 7, 4


def answering() -> RequestStream:
    stream = open_stream(RequestStreams(), "r", "beast")
    stream.put(Accepted(request_id="r", prompt_tokens=PROMPT_TOKENS))
    stream.put(Delta(request_id="r", text="x", num_tokens=3))
    return stream


def go_on_until_cancelled(stream: RequestStream) -> Usage:
    stream.put(Delta(request_id="r", text="x", num_tokens=5))
    used = Usage(
        prompt_tokens=PROMPT_TOKENS,
        cached_tokens=CACHED_TOKENS,
        completion_tokens=8,
        reasoning_tokens=6,
    )
    stream.put(Cancelled(request_id="r", usage=used))
    assert stream.usage_counter.is_settled
    return stream.usage_counter.usage


async def test_tokens_after_an_error_that_the_client_was_told_are_not_billed() -> None:
    stream = answering()
    stream.fail(events_lost())
    assert go_on_until_cancelled(stream) == Usage(
        prompt_tokens=PROMPT_TOKENS,
        cached_tokens=CACHED_TOKENS,
        completion_tokens=3,
        reasoning_tokens=3,
    )


async def test_tokens_after_a_client_hung_up_are_billed() -> None:
    stream = answering()
    stream.end()
    assert go_on_until_cancelled(stream).completion_tokens == 8


async def test_a_prompt_without_a_token_costs_nothing_after_an_error() -> None:
    stream = open_stream(RequestStreams(), "r", "beast")
    stream.put(Accepted(request_id="r", prompt_tokens=PROMPT_TOKENS))
    stream.fail(events_lost())
    assert go_on_until_cancelled(stream) == Usage(prompt_tokens=0, completion_tokens=0)
