"""What happens to a request, told upwards: text events from a neuron to the gateway that asked.

    Accepted ─▶ Delta* ─▶ Finished | Failed | Cancelled        exactly one terminal event

A neuron XADDs one ``EventBatch`` per engine step per gateway process; ``sequence_number`` counts
batches per (neuron epoch, gateway), so a reader sees a gap when Redis lost something.
"""

from __future__ import annotations

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length"]


class TextLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """One output token as text, for dialects that show logprobs. ``token_bytes`` are its exact
    bytes, which may be part of a character."""

    token: str
    token_bytes: bytes
    logprob: float
    top: list[tuple[str, bytes, float]] = []


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Of ``prompt_tokens``, how many came from the prefix cache."""


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request did not finish. ``code`` is one of the design's table of refusals and is
    rendered by the dialect (status, type); ``message`` is written for the client."""

    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None


class Accepted(msgspec.Struct, frozen=True, kw_only=True, tag="accepted"):
    """The neuron has rendered and tokenized the prompt and handed it to the engine."""

    request_id: str
    prompt_tokens: int


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="delta"):
    """New text of one step. Whole characters only; may be empty when it carries only logprobs."""

    request_id: str
    text: str
    num_tokens: int = 1
    logprobs: list[TextLogprob] | None = None


class Finished(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="finished"):
    request_id: str
    reason: FinishReason
    usage: Usage
    stop_sequence: str | None = None
    """The stop string that ended it, when one did."""


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    request_id: str
    failure: Failure


class Cancelled(msgspec.Struct, frozen=True, kw_only=True, tag="cancelled"):
    request_id: str


Event = Accepted | Delta | Finished | Failed | Cancelled
TERMINAL_EVENTS = (Finished, Failed, Cancelled)


class EventBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a gateway's event stream, msgpack in the stream field ``b"b"``."""

    neuron: str
    epoch: str
    """Identifies one life of the neuron process."""
    sequence_number: int
    events: list[Event]


EVENT_BATCH_FIELD = b"b"
encode_event_batch = msgspec.msgpack.Encoder().encode
decode_event_batch = msgspec.msgpack.Decoder(EventBatch).decode
