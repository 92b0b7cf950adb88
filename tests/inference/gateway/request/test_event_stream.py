"""Which tokens an attempt is billed for whose end its client is told before its neuron is, and
whose fault a standstill is said to be."""

from __future__ import annotations

import pytest

from inference.gateway.request.answer_check import AnswerFaultError
from inference.gateway.request.event_stream import (
    STANDSTILL_INTERVAL_S,
    RequestStream,
    RequestStreams,
    events_lost,
    neuron_lost,
    request_lost,
)
from inference.protocol.events import Accepted, Cancelled, Delta, ToolCallStarted, Usage
from inference.protocol.keys import GATEWAY_ALIVE_EXPIRY_S
from inference.redis_link import redis_unavailable
from inference.wire.errors import ApiError
from tests.cases import each_case
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


@each_case("numbers", [(1,), (0, 0), (0, 2)])
async def test_tool_calls_begin_in_their_order(numbers: tuple[int, ...]) -> None:
    stream = open_stream(RequestStreams(), "r", "beast")
    *sound, wrong = (
        ToolCallStarted(request_id="r", call_id=f"c{number}", name="f", call_index=number)
        for number in numbers
    )
    for event in sound:
        stream.put(event)
    with pytest.raises(AnswerFaultError, match="out of order"):
        stream.put(wrong)


async def test_a_prompt_without_a_token_costs_nothing_after_an_error() -> None:
    stream = open_stream(RequestStreams(), "r", "beast")
    stream.put(Accepted(request_id="r", prompt_tokens=PROMPT_TOKENS))
    stream.fail(events_lost())
    assert go_on_until_cancelled(stream) == Usage(prompt_tokens=0, completion_tokens=0)


async def message_of(stream: RequestStream, error: ApiError) -> str:
    stream.fail(error)
    with pytest.raises(ApiError) as raised:
        await stream.next_events()
    return raised.value.message


async def test_what_is_lost_by_a_standstill_is_called_so() -> None:
    now_s = 1000.0
    streams = RequestStreams(clock=lambda: now_s)
    errors = (request_lost("beast"), events_lost(), redis_unavailable(), neuron_lost("beast"))
    opened = [open_stream(streams, f"r{number}", "beast") for number in range(len(errors))]
    now_s += STANDSTILL_INTERVAL_S + GATEWAY_ALIVE_EXPIRY_S - 1
    await streams.check_standstill()
    assert not any(stream.stood_still_s for stream in opened), "its key has not lapsed"
    now_s += 12
    await streams.check_standstill()
    words = [await message_of(one, error) for one, error in zip(opened, errors, strict=True)]
    assert all("This gateway stood still for 12 s" in one for one in words[:3])
    assert words[3] == neuron_lost("beast").message, "its neuron did go away"
    later = open_stream(streams, "later", "beast")
    assert await message_of(later, request_lost("beast")) == request_lost("beast").message
