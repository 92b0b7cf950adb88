"""One request that is passed through to an upstream: audio, images, moderation.

    send ─▶ status ─▶ a type that an answer has ─▶ first part ─▶ parts ─▶ end
                                                     │ from here on it is charged
                                                     └ a small JSON body is read whole before

An answer is charged once it has begun: by the upstream's report, else by the estimate. Nothing is
read ahead: a slow client slows its upstream.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.settings import UNIT_OF_TASK
from fleet.catalogue.targets import Target
from inference.gateway.consumers.api_consumer import UNBUFFERED, ApiConsumer
from inference.gateway.request.admission import check_task, permitted_upstream
from inference.gateway.request.identify import cleaned
from inference.gateway.request.run import Failover
from inference.gateway.request.tokens import TokenBounds, UsageCounter
from inference.gateway.server.http_messages import parse_aside
from inference.gateway.upstreams.forwarded import (
    MAX_ANSWER_BYTES,
    begin_attempt,
    is_within,
)
from inference.gateway.upstreams.links import UpstreamLink, check_status, faults
from inference.protocol.events import Usage
from inference.wire.errors import ModelNotAllowedError, UnsupportedParameterError, upstream_failed
from inference.wire.openai.multipart_form import Rewritten, read_form
from inference.wire.openai.passed import (
    END_USER_FIELDS,
    EVENTS,
    JSON,
    PassedEndpoint,
    PassedRequest,
    SecretGuard,
    UnitsReader,
    read_json,
    read_upload,
    to_json,
)
from inference.wire.upstream.answer_events import (
    BYTES_A_TOKEN,
    UpstreamErrorObject,
    UpstreamFaultError,
)
from metering.money import NOT_METERED, Metered

if TYPE_CHECKING:
    from inference.gateway.upstreams.connection import UpstreamConnection

logger = logging.getLogger(__name__)


HELD_BYTES = 64 * 1024
TYPES = re.compile(
    r"(application/json|application/octet-stream|application/x-subrip|text/plain|text/vtt"
    r"|text/event-stream|audio/[\w.+-]{1,100})(\s*;[\x20-\x7e]{0,200})?"
)
"""A page of HTML is no answer, and would run as one of this server's."""
BINARY = "application/octet-stream"


class PassThroughConsumer(ApiConsumer):
    _request: PassedRequest
    _entry: CatalogueEntry
    _most: TokenBounds
    _failover: Failover

    def __init__(self, *, passed: PassedEndpoint, **options: Any) -> None:
        super().__init__(**options)
        self._passed = passed

    async def pass_on(self, body: bytes) -> None:
        if self._form is None:
            self._request = await parse_aside(partial(read_json, self._passed, body), len(body))
        else:
            self._request = await asyncio.to_thread(self._read_form)
        await self._permit()
        self._deadline_s = asyncio.get_running_loop().time() + self.gateway.config.request_timeout_s
        entry = self._entry
        self._failover = Failover(
            self.gateway, self.call, entry, entry.ordered_targets, deadline_s=self._deadline_s
        )
        self._failover.begin()
        await self._reserve()
        await self._failover.run(self._attempt)

    def _read_form(self) -> PassedRequest:
        assert self._form is not None, "an endpoint of JSON"
        content_type = self.context().headers.get("content-type", "")
        return read_upload(self._passed, read_form(content_type, self._form))

    async def _permit(self) -> None:
        gateway, call, request = self.gateway, self.call, self._request
        call.model_asked = request.model
        if call.who.names_end_user:
            call.end_user = call.end_user or cleaned(request.end_user)
        entry = self._entry = await gateway.catalogue.find(request.model)
        call.model = call.placed_model = entry.name
        call.is_billed = not call.who.is_self_test
        if not call.who.may_use(entry):
            raise ModelNotAllowedError(entry.name)
        check_task(entry, request.endpoint.task)
        most = self._most = most_tokens(entry, request)
        is_counted = most is not NO_TOKENS and call.who.tokens_per_minute is not None
        await gateway.limits.acquire(call, most if is_counted else None, entry.name)

    async def _reserve(self) -> None:
        call, most_units = self.call, self._request.units.most
        each = [self._metered(one, most_units) for one in self._failover.permitted()]
        call.metered = max(each, key=lambda metered: metered.micro_usd)
        try:
            if call.is_billed:
                await self.gateway.accounting.reserve(call, self._most)
        finally:
            call.metered = NOT_METERED

    def _metered(self, target: Target, units: int) -> Metered:
        prices = self._entry.unit_prices_at(target).less(self.call.discount_percent)
        return prices.metered(UNIT_OF_TASK[self._entry.task], units)

    async def _attempt(self, target: Target) -> None:
        served = target.upstream_model
        assert served is not None, "a task that no engine has"
        gateway, call = self.gateway, self.call
        upstream = permitted_upstream(gateway.pseudonym, call, self._entry, served)
        if upstream.dialect != "openai":
            raise UnsupportedParameterError(
                "model", f"the upstream {upstream.name} speaks no dialect that has this endpoint"
            )
        link = await gateway.upstreams.link(upstream)
        place_s = min(self._deadline_s, self._failover.place_deadline_s or self._deadline_s)
        content, content_headers = self._content(served.model)
        counter, headers = await begin_attempt(gateway, call, link, served, until_s=place_s)
        self._failover.is_sent = True
        headers |= content_headers
        answer = _PassedAnswer(link, self._request, self, counter)
        try:
            try:
                await answer.pass_on(content, headers, deadline_s=self._deadline_s)
            finally:
                self._settle(answer, target, counter)
        except BaseException as error:
            link.leave_place(error)
            raise
        link.leave_place(None)

    def _content(self, model: str) -> tuple[bytes | AsyncIterator[bytes], dict[str, str]]:
        form = self._request.form
        if form is None:
            body = to_json(self._request, model)
            return body, {"content-type": "application/json"}
        boundary = uuid.uuid4().hex
        rewritten = form.rewritten(boundary, model=model, without=frozenset(END_USER_FIELDS))
        headers = {
            "content-type": f"multipart/form-data; boundary={boundary}",
            "content-length": str(rewritten.num_bytes),
        }
        return _chunks(rewritten), headers

    def _settle(self, answer: _PassedAnswer, target: Target, counter: UsageCounter) -> None:
        if answer.has_begun:
            units = self._units_used(answer)
            self.call.metered = self._metered(target, units)
            if self._entry.charges_tokens_at(target):
                counter.settle(self._tokens_used(answer, units))
        counter.settle_as_counted()

    def _units_used(self, answer: _PassedAnswer) -> int:
        request, reported = self._request, answer.reported[0]
        if reported is not None and reported <= request.units.most:
            return reported
        self.call.is_usage_estimated = not (request.units.is_exact and answer.is_whole)
        if reported is not None:
            logger.warning(
                "request %s: its upstream reports %d %ss, and %d are the most; they are estimated",
                self.call.request_id,
                reported,
                UNIT_OF_TASK[self._entry.task],
                request.units.most,
            )
        return request.units.likely

    def _tokens_used(self, answer: _PassedAnswer, units: int) -> Usage:
        reported, most = answer.reported[1], self._most
        most_used = Usage(
            prompt_tokens=most.prompt_tokens, completion_tokens=most.output_tokens or 0
        )
        if reported is not None and is_within(reported, most_used):
            return reported
        self.call.is_usage_estimated = True
        return estimate(most_used, self._request, units=units, num_bytes=answer.num_bytes)


class _PassedAnswer:
    def __init__(
        self,
        link: UpstreamLink,
        request: PassedRequest,
        reply: PassThroughConsumer,
        counter: UsageCounter,
    ) -> None:
        self._link = link
        self._request = request
        self._reply = reply
        self._counter = counter
        self._guard = SecretGuard(link.secret)
        self._units: UnitsReader | None = None
        self.has_begun = False
        self.is_whole = False
        self.num_bytes = 0

    @property
    def reported(self) -> tuple[int | None, Usage | None]:
        if self._units is None or not self.is_whole:
            return None, None
        return self._units.units, self._units.tokens

    async def pass_on(
        self,
        content: bytes | AsyncIterator[bytes],
        headers: Mapping[str, str],
        *,
        deadline_s: float,
    ) -> None:
        with faults(self._link, lambda: self.has_begun):
            entry = self._link.entry
            until_s = min(
                deadline_s, asyncio.get_running_loop().time() + entry.first_token_timeout_s
            )
            url = entry.url + self._request.endpoint.path.removeprefix("/v1")
            response = await self._link.post(
                url, content, {"accept": "*/*", **headers}, until_s=until_s
            )
            try:
                async with asyncio.timeout_at(until_s):
                    await check_status(self._link, response)
                type_ = _type_of(response)
                async with aclosing(self._parts(response, until_s)) as parts:
                    await self._pass_parts(parts, type_)
            finally:
                self._link.free(response)
        if self._units is not None and self._units.has_failed:
            raise upstream_failed(f"The upstream {entry.name} failed in its answer.")

    async def _parts(self, response: UpstreamConnection, until_s: float) -> AsyncGenerator[bytes]:
        loop = asyncio.get_running_loop()
        left_bytes = MAX_ANSWER_BYTES
        while (part := await response.next_part(until_s)) is not None:
            left_bytes -= len(part)
            if left_bytes < 0:
                raise UpstreamFaultError(f"more than {MAX_ANSWER_BYTES:,} bytes")
            yield part
            until_s = loop.time() + self._link.entry.token_timeout_s

    async def _pass_parts(self, parts: AsyncGenerator[bytes], type_: str) -> None:
        kind = type_.partition(";")[0].strip().lower()
        self._units = UnitsReader(self._request.endpoint.task, kind)
        held, has_ended = await _held(parts, HELD_BYTES if kind == JSON else 0)
        if has_ended and kind == JSON:
            _check_object(held)
        first = self._checked(held)
        self._begin()
        if has_ended:
            self.is_whole = True
            await self._reply.respond(200, first + self._guard.rest(), type_=type_.encode())
            return
        if kind == EVENTS:
            # Where the stream fails later, an error is its last event.
            headers = [(b"content-type", type_.encode()), *UNBUFFERED]
            await self._reply.start_response(200, headers)
        else:
            await self._reply.begin_body(200, type_=type_.encode())
        await self._send(first)
        async for part in parts:
            await self._send(self._checked(part))
        self.is_whole = True
        await self._reply.send_body(self._guard.rest(), last=True)

    def _begin(self) -> None:
        self.has_begun = True
        self._reply.call.may_move = False
        self._counter.begun_s = self._counter.first_token_s = time.monotonic()
        self._link.has_answered()

    def _checked(self, part: bytes) -> bytes:
        assert self._units is not None, "an answer without a type"
        self._units.feed(part)
        self.num_bytes += len(part)
        passed = self._guard.feed(part)
        if passed is None:
            raise UpstreamFaultError("the key that it was sent")
        return passed

    async def _send(self, part: bytes) -> None:
        if part:
            await self._reply.send_body(part)


async def _chunks(rewritten: Rewritten) -> AsyncIterator[bytes]:
    chunks = rewritten.chunks()
    while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
        yield chunk


NO_TOKENS = TokenBounds(prompt_tokens=0, output_tokens=0, default_output_tokens=0, num_choices=1)
TOKENS_A_SECOND = 10
"""Tokens of audio, as OpenAI's models count a user's: one for each 100 ms."""


def most_tokens(entry: CatalogueEntry, request: PassedRequest) -> TokenBounds:
    if not any(entry.charges_tokens_at(target) for target in entry.ordered_targets):
        return NO_TOKENS
    num_answers = request.units.most if request.endpoint.task == "images" else 1
    return TokenBounds(
        prompt_tokens=entry.max_context_tokens or 0,
        output_tokens=(entry.max_output_tokens or 0) * num_answers,
        default_output_tokens=0,
        num_choices=1,
    )


def estimate(most: Usage, request: PassedRequest, *, units: int, num_bytes: int) -> Usage:
    prompt_tokens, output_tokens = most.prompt_tokens, most.completion_tokens
    if request.endpoint.task == "transcription":
        prompt_tokens = min(prompt_tokens, units * TOKENS_A_SECOND)
        output_tokens = min(output_tokens, -(-num_bytes // BYTES_A_TOKEN))
    else:
        output_tokens = output_tokens * units // max(1, request.units.most)
    return Usage(prompt_tokens=prompt_tokens, completion_tokens=output_tokens)


def _type_of(response: UpstreamConnection) -> str:
    encoding = response.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise UpstreamFaultError("a compressed body")
    type_: str = response.headers.get("content-type", BINARY).strip()
    if not TYPES.fullmatch(type_.lower()):
        raise UpstreamFaultError("something else than audio, text or JSON")
    return type_


async def _held(parts: AsyncGenerator[bytes], max_bytes: int) -> tuple[bytes, bool]:
    held = bytearray()
    async for part in parts:
        held += part
        if len(held) > max_bytes:
            return bytes(held), False
    return bytes(held), True


def _check_object(body: bytes) -> None:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise UpstreamFaultError("something that is no JSON") from None
    if isinstance(found, dict) and found.get("error"):
        raise UpstreamErrorObject(found["error"])
