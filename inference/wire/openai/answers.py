"""Encodes chat and text completions: chunks, usage, padding, log probabilities of prompts.

Chunks are padded to a multiple of ``BLOCK_BYTES``, so that lengths in an encrypted stream reveal no
tokens: OpenAI's ``include_obfuscation``. vLLM's ``prompt_logprobs`` begin with null:

    [null, {"9707": {"logprob": -1.2, "rank": 3, "decoded_token": "Hello"}, …}, …]

The padding is derived from the chunk.
"""

from __future__ import annotations

import base64
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from inference.protocol.events import (
    Accepted,
    ChoiceFinished,
    Delta,
    Event,
    Finished,
    FinishReason,
    OutputTokens,
    PromptScored,
    RankedToken,
    ReasoningDelta,
    TextLogprob,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from inference.protocol.generation import GenerationRequest
from inference.wire.dialect import Encoder, UnixClock

LEAST_LOGPROB = -9999.0
"""The API's value for minus infinity, which JSON lacks."""

DONE_FRAME = b"data: [DONE]\n\n"


CHOICE_MARK = b',"choices":[{'
"""Every chunk with a choice has this, and no JSON string."""
NO_USAGE_YET = b'],"usage":null}\n\n'
"""No JSON string has this."""


class UsageReporting(StrEnum):
    NEVER = "never"
    LAST = "last"
    """The usage is in a chunk of its own before [DONE]."""
    RUNNING = "running"
    """LAST, and the usage so far in every other chunk."""
    TIMED = "timed"
    """LAST with the engine's own times; also in a body."""


def head_of(head: dict[str, Any], event: Accepted) -> dict[str, Any]:
    return {**head, "system_fingerprint": event.fingerprint or None}


def _start(head: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(head)[:-1] + b',"choices":['


class RunningUsage:
    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._prompt_tokens = 0
        self._completion_tokens = 0

    def encode(self, event: Event) -> bytes:
        match event:
            case Accepted():
                self._prompt_tokens = event.prompt_tokens
            case (
                Delta() | ReasoningDelta() | ToolCallStarted() | ToolCallDelta() | ChoiceFinished()
            ):
                self._completion_tokens += event.num_tokens
        frames = self._encoder.encode(event)
        return frames.replace(NO_USAGE_YET, self._end())

    def _end(self) -> bytes:
        total = self._prompt_tokens + self._completion_tokens
        counts = self._prompt_tokens, self._completion_tokens, total
        usage = b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}' % counts
        return b'],"usage":' + usage + b"}\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedAnswer:
    generation: GenerationRequest
    stream: bool
    usage: UsageReporting
    pads_chunks: bool

    def head(self, prefix: str, kind: str, request_id: str, clock: UnixClock) -> dict[str, Any]:
        return {
            "id": f"{prefix}-{request_id}",
            "object": kind,
            "created": clock(),
            "model": self.generation.model,
            "system_fingerprint": None,
        }

    def reporting(self, encoder: Encoder) -> Encoder:
        if self.usage is UsageReporting.RUNNING:
            encoder = RunningUsage(encoder)
        return Obfuscated(encoder, marks=CHOICE_MARK) if self.pads_chunks else encoder


class StreamEncoder(ABC):
    """``text``: the bytes between a choice's index and the JSON of its text, ``text_end`` those
    behind it. ``empty``: the fields of a choice without text."""

    text: bytes
    text_end: bytes
    empty: dict[str, Any]

    def __init__(self, head: dict[str, Any], usage: UsageReporting, num_choices: int) -> None:
        self._head = head
        self._usage = usage
        self._start = _start(head)
        self._end = b"]}\n\n" if usage is UsageReporting.NEVER else NO_USAGE_YET
        self._indices = range(num_choices)
        self._text_starts: list[bytes] = []
        self._text_end = self.text_end + b',"logprobs":null,"finish_reason":null}' + self._end

    def encode(self, event: Event) -> bytes:
        match event:
            case Delta(logprobs=None):  # most events are this one
                if not event.text:
                    return b""
                start = self._text_starts[event.index]
                return start + orjson.dumps(event.text) + self._text_end
            case OutputTokens():
                return self._chunk(event.index, self.empty | {"token_ids": event.token_ids})
            case Accepted():
                self._head = head_of(self._head, event)
                start = self._start = _start(self._head)
                indices = self._indices
                self._text_starts = [start + b'{"index":%d,' % at + self.text for at in indices]
                return self._begin(event)
            case ChoiceFinished():
                reason = finish_reason(event.reason)
                return self._chunk(event.index, self.empty, finish_reason=reason)
            case Finished():
                return self._last(event)
        return self._other(event)

    def _chunk(
        self,
        index: int,
        content: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
        more_head: dict[str, Any] | None = None,
    ) -> bytes:
        end = {"logprobs": logprobs, "finish_reason": finish_reason}
        start = self._start if more_head is None else _start({**self._head, **more_head})
        return start + orjson.dumps({"index": index, **content, **end}) + self._end

    def _last(self, event: Finished) -> bytes:
        if self._usage is UsageReporting.NEVER:
            return DONE_FRAME
        usage_json = orjson.dumps(full_usage_object(event, self._usage))
        return self._start + b'],"usage":' + usage_json + b"}\n\n" + DONE_FRAME

    @abstractmethod
    def _begin(self, event: Accepted) -> bytes: ...
    @abstractmethod
    def _other(self, event: Event) -> bytes: ...


class Choice(ABC):
    def __init__(self) -> None:
        self.finish_reason = ""
        self.token_ids: list[int] = []

    @abstractmethod
    def add(self, event: Event) -> None: ...
    @abstractmethod
    def content(self) -> dict[str, Any]: ...
    @abstractmethod
    def logprobs(self) -> dict[str, Any] | None: ...


class BodyEncoder:
    """``names_prompts``: fields of a prompt are in its choices, else in the head."""

    def __init__(
        self,
        asked: AskedAnswer,
        head: dict[str, Any],
        choices: Sequence[Choice],
        *,
        names_prompts: bool = False,
    ) -> None:
        generation = asked.generation
        self._head = head
        self._choices = choices
        self._usage = asked.usage
        self._shows_token_ids = generation.returns_token_ids
        self._names_prompts = names_prompts
        self._n = generation.n
        self._prompts: list[list[int]] | None = None
        self._scores: list[list[bytes]] | None = None
        """JSON of each prompt's positions: there are many of them."""
        if generation.sampling.prompt_logprobs is not None:
            self._scores = [[b"null"] for _ in range(len(choices) // self._n)]

    def encode(self, event: Event) -> bytes:
        return b"".join(self.parts(event))

    def parts(self, event: Event) -> Iterator[bytes]:
        match event:
            case Accepted():
                self._head = head_of(self._head, event)
                self._prompts = event.prompt_token_ids
            case PromptScored() if self._scores is not None:
                self._scores[event.prompt_index] += map(_position, event.tokens)
            case OutputTokens():
                self._choices[event.index].token_ids += event.token_ids
            case Delta() | ReasoningDelta() | ToolCallStarted() | ToolCallDelta():
                self._choices[event.index].add(event)
            case ChoiceFinished():
                self._choices[event.index].finish_reason = finish_reason(event.reason)
            case Finished():
                yield from self._body(event)

    def _body(self, event: Finished) -> Iterator[bytes]:
        head = self._head
        if not self._names_prompts:
            head = {**head, **self._ids_of_prompt(0), **self._scores_of_prompt(0)}
        yield orjson.dumps(head)[:-1] + b',"choices":['
        for index, choice in enumerate(self._choices):
            yield (b"," if index else b"") + orjson.dumps(self._object(index, choice))
        yield b'],"usage":' + orjson.dumps(full_usage_object(event, self._usage)) + b"}"

    def _object(self, index: int, choice: Choice) -> dict[str, Any]:
        prompt, names = index // self._n, self._names_prompts
        return {
            "index": index,
            **choice.content(),
            "logprobs": choice.logprobs(),
            "finish_reason": choice.finish_reason,
            **(self._ids_of_prompt(prompt) if names else {}),
            **({"token_ids": choice.token_ids} if self._shows_token_ids else {}),
            **(self._scores_of_prompt(prompt) if names else {}),
        }

    def _ids_of_prompt(self, prompt: int) -> dict[str, Any]:
        return {} if self._prompts is None else {"prompt_token_ids": self._prompts[prompt]}

    def _scores_of_prompt(self, prompt: int) -> dict[str, Any]:
        return {} if self._scores is None else {"prompt_logprobs": json_array(self._scores[prompt])}


def full_usage_object(event: Finished, usage: UsageReporting) -> dict[str, Any]:
    reported = usage_object(event.usage)
    if usage is UsageReporting.TIMED and event.timing is not None:
        reported["helexa_timing"] = {
            "prefill_ms": round(event.timing.prefill_ms, 3),
            "decode_ms": round(event.timing.decode_ms, 3),
            "prefill_tokens": event.timing.prefill_tokens,
        }
    return reported


def usage_object(usage: Usage) -> dict[str, Any]:
    details = {"reasoning_tokens": usage.reasoning_tokens}
    if usage.accepted_drafts or usage.rejected_drafts:
        details["accepted_prediction_tokens"] = usage.accepted_drafts
        details["rejected_prediction_tokens"] = usage.rejected_drafts
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": details,
    }


def finish_reason(reason: FinishReason) -> str:
    """This API calls a full context ``length``."""
    return "length" if reason == "context" else reason


BLOCK_BYTES = 64
"""Most tokens with their escapes fit."""
FRAME_END = b"\n\n"
OBJECT_END = b"}"
FIELD = b',"obfuscation":"%b"}'


class Obfuscated:
    def __init__(self, encoder: Encoder, *, marks: bytes) -> None:
        self._encoder = encoder
        self._marks = marks

    def encode(self, event: Event) -> bytes:
        return padded(self._encoder.encode(event), marks=self._marks)


def padded(frames: bytes, *, marks: bytes) -> bytes:
    each = frames.split(FRAME_END)
    return FRAME_END.join([_padded(frame) if marks in frame else frame for frame in each])


def _padded(frame: bytes) -> bytes:
    body = frame.removesuffix(OBJECT_END)
    num_bytes = -(len(body) + len(FIELD) - len(b"%b") + len(FRAME_END)) % BLOCK_BYTES
    return body + FIELD % _noise(frame, num_bytes)


def _noise(frame: bytes, num_bytes: int) -> bytes:
    return base64.urlsafe_b64encode(hashlib.shake_128(frame).digest(num_bytes))[:num_bytes]


def json_array(items: list[bytes]) -> orjson.Fragment:
    return orjson.Fragment(b"[" + b",".join(items) + b"]")


def _position(tokens: list[RankedToken]) -> bytes:
    return orjson.dumps(
        {
            str(token.token_id): {
                "logprob": max(token.logprob, LEAST_LOGPROB),
                "rank": token.rank,
                "decoded_token": token.text,
            }
            for token in tokens
        }
    )


def token_object(token: TextLogprob) -> dict[str, Any]:
    assert token.logprob is not None, "every output token has one"
    top = [_candidate(*candidate) for candidate in token.top]
    return {**_candidate(token.token, token.token_bytes, token.logprob), "top_logprobs": top}


def _candidate(token: str, token_bytes: bytes, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": max(logprob, LEAST_LOGPROB), "bytes": list(token_bytes)}
