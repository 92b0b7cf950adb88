"""Events of a request: a neuron sends them to the gateway that submitted it.

    Accepted ─▶ (Delta | ReasoningDelta | ToolCallStarted | ToolCallDelta)* ─▶ ChoiceFinished
                 PromptScored before those of its prompt, where asked for
                 OutputTokens before those of its step, where asked for
                                        for each choice, interleaved ─▶ Finished
    Accepted ─▶ EmbeddedPart* ─▶ Embedded        TokensCounted | Tokenized
                                                              at any time: Failed | Cancelled

One event is terminal: Finished, Embedded, TokensCounted, Tokenized, Failed or Cancelled. ``Traced``
and ``StageTimes`` come before it. Events of one choice come in order, and a tool call's deltas
before the next call starts.

``EventBatch.sequence_number`` counts batches per (neuron epoch, gateway), so a reader sees a gap
when Redis lost something. The stream's key says which neuron wrote a batch.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from inference.protocol.engine import SequenceTiming

FinishReason = Literal["stop", "length", "tool_calls", "context"]
"""``length``: max_tokens. ``context``: the context was full before that."""


class TextLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """``token_bytes`` are the token's exact bytes, which may be part of a character."""

    token: str
    token_bytes: bytes
    logprob: float | None
    """``None``: the first token of a prompt, which nothing precedes."""
    top: list[tuple[str, bytes, float]] = []


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    accepted_drafts: int = 0
    rejected_drafts: int = 0
    """Appears in no answer and is not billed."""


class TooLong(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    """A lower bound where the text was too long to be tokenized."""
    context_tokens: int


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The dialect renders ``code`` (status, type); ``message`` is written for the client."""

    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None
    num_prompt_tokens: int | None = None
    """The prompt's length, where it is over the reservation."""
    too_long: TooLong | None = None
    model_id: str = ""
    suggestion: str = ""


class UsedSampling(msgspec.Struct, frozen=True, kw_only=True):
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float


class RequestEvent(msgspec.Struct, frozen=True, kw_only=True):
    request_id: str


class ChoiceEvent(RequestEvent, frozen=True, kw_only=True):
    index: int = 0


class Accepted(RequestEvent, frozen=True, kw_only=True, omit_defaults=True, tag="accepted"):
    prompt_tokens: int
    sampling: UsedSampling | None = None
    fingerprint: str = ""
    """Changes where the same seed may give other tokens."""
    num_lost_turns: int = 0
    prompt_token_ids: list[list[int]] | None = None
    not_enforced: list[str] = []


class RankedToken(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    token_id: int
    text: str
    logprob: float
    rank: int


class PromptScored(RequestEvent, frozen=True, kw_only=True, omit_defaults=True, tag="scored"):
    """Starts with the prompt's second token. Lists have the token, then the likeliest in order."""

    tokens: list[list[RankedToken]]
    prompt_index: int = 0


class Delta(ChoiceEvent, frozen=True, kw_only=True, omit_defaults=True, tag="delta"):
    """May be empty when it carries only logprobs. ``num_tokens``, here as elsewhere, counts this
    choice's tokens since its last event with a count."""

    text: str
    num_tokens: int = 1
    logprobs: list[TextLogprob] | None = None


class OutputTokens(ChoiceEvent, frozen=True, kw_only=True, omit_defaults=True, tag="tokens"):
    """One step's ids, thinking and markers too. Their text may come much later."""

    token_ids: list[int]


class ReasoningDelta(ChoiceEvent, frozen=True, kw_only=True, omit_defaults=True, tag="reasoning"):
    """``opens`` and ``closes`` are markers, on the first and last delta. ``missing_close`` is the
    closing marker that the model did not write before the answer ended."""

    text: str
    num_tokens: int = 1
    opens: str | None = None
    closes: str | None = None
    missing_close: str | None = None


class ToolCallStarted(ChoiceEvent, frozen=True, kw_only=True, omit_defaults=True, tag="tool_call"):
    """Counted per choice from 0. Empty arguments are one ``ToolCallDelta`` with ``{}``."""

    call_id: str
    name: str
    call_index: int = 0
    num_tokens: int = 0


class ToolCallDelta(
    ChoiceEvent, frozen=True, kw_only=True, omit_defaults=True, tag="tool_arguments"
):
    """A call's pieces concatenate to one JSON object."""

    arguments: str
    call_index: int = 0
    num_tokens: int = 0


class ChoiceFinished(
    ChoiceEvent, frozen=True, kw_only=True, omit_defaults=True, tag="choice_finished"
):
    reason: FinishReason
    stop_sequence: str | None = None
    num_tokens: int = 0


class Finished(RequestEvent, frozen=True, kw_only=True, omit_defaults=True, tag="finished"):
    """``usage`` counts each prompt once and every choice's output."""

    usage: Usage
    timing: SequenceTiming | None = None
    """Only for a request's only choice, where no stop string ended it."""


class EmbeddedPart(RequestEvent, frozen=True, kw_only=True, tag="embedded_part"):
    vectors: list[bytes]


class Embedded(RequestEvent, frozen=True, kw_only=True, tag="embedded"):
    """``vectors`` are float32, little-endian, one a prompt; earlier parts have the others."""

    vectors: list[bytes]
    usage: Usage


class TokensCounted(RequestEvent, frozen=True, kw_only=True, tag="tokens_counted"):
    prompt_tokens: int


class Tokenized(RequestEvent, frozen=True, kw_only=True, omit_defaults=True, tag="tokenized"):
    token_ids: list[int]
    context_tokens: int
    text: str = ""
    texts: list[str] | None = None
    settings: dict[str, Any] | None = None


class Failed(RequestEvent, frozen=True, kw_only=True, omit_defaults=True, tag="failed"):
    failure: Failure
    usage: Usage | None = None


class Cancelled(RequestEvent, frozen=True, kw_only=True, omit_defaults=True, tag="cancelled"):
    usage: Usage | None = None


MAX_TRACE_BYTES = 256 * 1024


class Traced(RequestEvent, frozen=True, kw_only=True, tag="traced"):
    """Rendered prompt, parsers' decisions, raw text: ``MAX_TRACE_BYTES`` at most."""

    text: str


class StageTimes(RequestEvent, frozen=True, kw_only=True, omit_defaults=True, tag="stage_times"):
    """Consecutive times, by the neuron's clock. ``None``: not reached, or not known."""

    total_ms: float
    prepare_ms: float
    """Waiting for a thread, rendering, tokenizing."""
    queue_ms: float | None = None
    """Ends with the start of its first step."""
    prefill_ms: float | None = None
    """Ends with its first token; of several choices the first one's."""
    decode_ms: float | None = None


class Fragment(RequestEvent, frozen=True, kw_only=True, omit_defaults=True, tag="fragment"):
    """The next bytes of an event's msgpack. No other event of its request comes before the last."""

    data: bytes
    is_last: bool = False


Event = (
    Accepted
    | PromptScored
    | OutputTokens
    | Delta
    | ReasoningDelta
    | ToolCallStarted
    | ToolCallDelta
    | ChoiceFinished
    | Finished
    | EmbeddedPart
    | Embedded
    | TokensCounted
    | Tokenized
    | Failed
    | Cancelled
    | Traced
    | StageTimes
    | Fragment
)
ANSWERS = (Finished, Embedded, TokensCounted, Tokenized)
TERMINAL_EVENTS = (*ANSWERS, Failed, Cancelled)


class EventBatch(msgspec.Struct, frozen=True, kw_only=True):
    epoch: str
    sequence_number: int
    events: list[Event]


MAX_BATCH_BYTES = 256 * 1024
EVENT_BATCH_FIELD = b"b"
encode_event = msgspec.msgpack.Encoder().encode
decode_event = msgspec.msgpack.Decoder(Event).decode
encode_event_batch = msgspec.msgpack.Encoder().encode
decode_event_batch = msgspec.msgpack.Decoder(EventBatch).decode
