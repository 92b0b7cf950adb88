"""Answers requests for text, vectors, scores, ranks and tokens.

A stream that has to wait starts after ``STREAM_GRACE_S``: early refusals keep their status, later
ones become the stream's last event. The neuron tokenizes and counts with the model's own template
and tokenizer; the engine takes no part in that.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar

import msgspec

from inference.gateway.consumers.api_consumer import UNBUFFERED, ApiConsumer, Headers
from inference.gateway.request.attempt import RunningRequest, until_ended
from inference.gateway.response_store import ResponseStore
from inference.protocol.events import (
    Accepted,
    Embedded,
    EmbeddedPart,
    Event,
    Finished,
    Tokenized,
    TokensCounted,
)
from inference.protocol.generation import EmbeddingRequest, TokenCountRequest, TokenizeRequest
from inference.protocol.heartbeat import ReplicaStatus
from inference.wire import vllm
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.dialect import (
    WAITING_COMMENT,
    Encoder,
    Parse,
    ParsedRequest,
    waiting_comment,
    with_escaped_line_ends,
)
from inference.wire.embeddings import parse_openai
from inference.wire.errors import MissingParameterError
from inference.wire.responses import request as openai_responses

STREAM_GRACE_S = 2.0
KEEP_ALIVE_S = 10.0
STREAM_HEADERS: Headers = [(b"content-type", b"text/event-stream; charset=utf-8"), *UNBUFFERED]


class StreamingConsumer(ApiConsumer):
    stream_headers: ClassVar[Headers] = STREAM_HEADERS

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._has_begun = False
        self._sent_s = -math.inf
        self._sending = asyncio.Lock()

    @contextmanager
    def _kept_alive(self, first_s: float) -> Iterator[None]:
        """Most answers end before ``first_s``, and need no task."""
        loop, beating = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        timer = loop.call_later(first_s, lambda: beating.add(loop.create_task(self._beat())))
        try:
            yield
        finally:
            timer.cancel()
            for task in beating:
                task.cancel()

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            wait_s = self._sent_s + KEEP_ALIVE_S - loop.time()
            if wait_s <= 0:
                await self._keep_alive()
                wait_s = KEEP_ALIVE_S
            await asyncio.sleep(wait_s)

    async def _send_frames(self, frames: bytes, *, last: bool) -> None:
        """One at a time: a keep-alive may start the response while the first answer arrives."""
        async with self._sending:
            if self._response_ended:
                return
            self._sent_s = asyncio.get_running_loop().time()
            if not self._response_started:
                await self.start_response(200, self.stream_headers)
            await self.send_body(with_escaped_line_ends(frames), last=last)

    async def _keep_alive(self) -> None:
        frame = self.errors.keep_alive_frame if self._has_begun else self._waiting_comment()
        await self._send_frames(frame, last=False)

    def _waiting_comment(self) -> bytes:
        wait = self.gateway.placer.wait_of(self.call.placed_model)
        return WAITING_COMMENT if wait is None else waiting_comment(wait.words)


class GenerationConsumer(StreamingConsumer):
    def __init__(self, *, parse: Parse, **options: Any) -> None:
        super().__init__(**options)
        self._parse = parse

    async def generate(self, body: bytes) -> None:
        reading = self.parsed(self._parse, body)
        del body
        await self.answer_request(await reading)

    async def answer_request(self, request: ParsedRequest) -> None:
        with self._kept_alive(STREAM_GRACE_S) if request.stream else nullcontext():
            async with self.running(request.generation) as stream:
                encoder = self._encoder(request)
                async for events in until_ended(stream):
                    await self._forward(events, encoder, request)

    def _encoder(self, request: ParsedRequest) -> Encoder:
        make = request.stream_encoder if request.stream else request.body_encoder
        return make(request_id=self.request_id, clock=unix_time_s)

    async def _forward(self, events: list[Event], encoder: Encoder, request: ParsedRequest) -> None:
        if isinstance(events[0], Accepted):
            self._ignored_fields += events[0].not_enforced
        has_finished = isinstance(events[-1], Finished)
        parts = await encoded(encoder, events)
        if parts and request.stream:
            await self._send_frames(b"".join(parts), last=has_finished)
            self._has_begun = True
        elif parts:
            await self.respond(200, parts)


LARGE_PART_BYTES = 4096
"""A turn of the loop for each smaller part would cost more than the part."""


async def encoded(encoder: Encoder, events: Sequence[Event]) -> list[bytes]:
    # ``isinstance`` on a protocol is slow.
    parts_of: Callable[[Event], Iterator[bytes]] | None = getattr(encoder, "parts", None)
    parts: list[bytes] = []
    for event in events:
        if parts_of is None:
            parts.append(encoder.encode(event))
            continue
        for part in parts_of(event):
            parts.append(part)
            if len(part) > LARGE_PART_BYTES:
                await asyncio.sleep(0)
    return [part for part in parts if part]


def unix_time_s() -> int:
    return int(time.time())


class VectorsConsumer(ApiConsumer):
    async def embeddings(self, body: bytes) -> None:
        request = await self.parsed(parse_openai, body)
        encoder = request.body_encoder(request_id=self.request_id, clock=unix_time_s)
        await self.respond_with_vectors(request.embedding, encoder)

    async def respond_with_vectors(self, request: EmbeddingRequest, encoder: Encoder) -> None:
        parts: list[bytes] = []
        async with self.running(request) as stream:
            async for events in until_ended(stream):
                parts += await encoded(encoder, events)
        await self.respond(200, parts)

    async def score(self, body: bytes) -> None:
        await self._answer_with_scores(await self.parsed(vllm.parse_score, body))

    async def rerank(self, body: bytes) -> None:
        version = 2 if self.endpoint.name.startswith("/v2") else 1
        parse = partial(vllm.parse_rerank, version=version)
        await self._answer_with_scores(await self.parsed(parse, body))

    async def _answer_with_scores(self, request: vllm.ScoringRequest | vllm.RerankRequest) -> None:
        async with self.running(request.score) as stream:
            embedded = await all_vectors(stream)
        encoder = request.body_encoder(request_id=self.request_id, clock=unix_time_s)
        await self.respond(200, encoder.encode(embedded))


async def all_vectors(stream: RunningRequest) -> Embedded:
    vectors: list[bytes] = []
    async for events in until_ended(stream):
        for event in events:
            if isinstance(event, EmbeddedPart | Embedded):
                vectors += event.vectors
    assert isinstance(event, Embedded), "vectors were answered with something else"
    return msgspec.structs.replace(event, vectors=vectors)


class TokenizeConsumer(ApiConsumer):
    async def tokenize(self, body: bytes) -> None:
        request = await self.parsed(vllm.parse_tokenize, body)
        await self.respond(200, vllm.tokenized_body(await self._tokenized(request)))

    async def detokenize(self, body: bytes) -> None:
        request = await self.parsed(vllm.parse_detokenize, body)
        await self.respond(200, vllm.detokenized_body(await self._tokenized(request)))

    async def tokenizer_info(self, body: bytes) -> None:
        request = vllm.tokenizer_request(self.query.get("model") or vllm.ANY_MODEL)
        await self.respond(200, vllm.tokenizer_body(await self._tokenized(request)))

    async def _tokenized(self, request: TokenizeRequest) -> Tokenized:
        if request.model == vllm.ANY_MODEL:
            request = msgspec.structs.replace(request, model=await self._only_model())
        last = await self.last_event(request)
        assert isinstance(last, Tokenized), "tokens were answered with something else"
        return last

    async def _only_model(self) -> str:
        entries = await self.gateway.catalogue.entries()
        names = {entry.name for entry in entries if self.call.who.may_use(entry)}
        replicas = (await self.gateway.liveness.snapshot()).replicas()
        loaded = {one.model for one in replicas if one.status is ReplicaStatus.READY} & names
        for found in (loaded, names):
            if len(found) == 1:
                return found.pop()
        raise MissingParameterError("model")


class TokenCountConsumer(ApiConsumer):
    def __init__(self, *, store: ResponseStore, **options: Any) -> None:
        super().__init__(**options)
        self._store = store

    async def count_messages(self, body: bytes) -> None:
        counted = await self._counted(await self.parsed(anthropic_messages.parse_count, body))
        await self.respond(200, anthropic_messages.count_body(counted))

    async def count_response(self, body: bytes) -> None:
        asked = await self.parsed(openai_responses.parse_count, body)
        whole = await self._store.continued(asked, self.call.who)
        counted = await self._counted(openai_responses.count_of(whole))
        await self.respond(200, openai_responses.count_body(counted))

    async def _counted(self, request: TokenCountRequest) -> int:
        last = await self.last_event(request)
        assert isinstance(last, TokensCounted), "a count was answered with something else"
        return last.prompt_tokens
