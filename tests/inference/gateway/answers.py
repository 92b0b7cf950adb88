"""Requests in flight, and what their answers are held to, in tests that care for other things."""

from __future__ import annotations

from inference.gateway.request.answer_check import AnswerCheck
from inference.gateway.request.event_stream import RequestStream, RequestStreams
from inference.gateway.request.tokens import UsageCounter
from inference.protocol.events import Usage
from inference.protocol.generation import GenerationRequest, TextInput


def any_answer() -> AnswerCheck:
    """Returns the check of an answer of one choice, of any length."""
    request = GenerationRequest(model="tiny", input=TextInput(texts=["Hi"]))
    return AnswerCheck(request, Usage(prompt_tokens=10**6, completion_tokens=10**6))


def open_stream(streams: RequestStreams, request_id: str, neuron: str) -> RequestStream:
    """A request that ``neuron`` was sent, in its epoch ``e``."""
    stream = RequestStream(
        request_id=request_id,
        neuron=neuron,
        epoch="e",
        model="tiny",
        first_token_timeout_s=60.0,
        abort=lambda: None,
        usage_counter=UsageCounter(),
        check=any_answer(),
    )
    streams.add(stream)
    return stream
