"""One request that is passed through (audio, images, moderation): permitted, reserved, sent to one
of its model's upstreams, and metered by its parameters or the upstream's report.

    find ─▶ permit ─▶ reserve the most ─▶ Failover ─▶ PassedAnswer ─▶ bytes ─▶ settle the units used
                                            ▲            │
                                            └── leave ───┘ before the first byte

An answer is charged once it has begun: by the upstream's report, else by the estimate.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from functools import partial

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.settings import UNIT_OF_TASK
from fleet.catalogue.targets import UPSTREAM_PREFIX, Target
from inference.gateway.consumers.api_consumer import UNBUFFERED, ApiConsumer
from inference.gateway.gateway import Gateway
from inference.gateway.request.admission import check_task
from inference.gateway.request.failover import Failover
from inference.gateway.request.identify import cleaned
from inference.gateway.request.outcome import Call
from inference.gateway.request.tokens import TokenBounds, UsageCounter
from inference.gateway.server.bodies import parse_aside, spooled_file
from inference.gateway.upstreams.forwarded import attempt_headers, permitted_upstream
from inference.gateway.upstreams.passed_answer import PassedAnswer, Reply
from inference.protocol.events import Usage
from inference.wire.errors import ModelNotAllowedError, UnsupportedParameterError
from inference.wire.openai.passed.form import Rewritten, read_form
from inference.wire.openai.passed.request import (
    END_USER_FIELDS,
    PassedEndpoint,
    PassedRequest,
    read_json,
    read_upload,
    to_json,
)
from inference.wire.upstream.answer_events import BYTES_A_TOKEN
from metering.prices import NOT_METERED, Metered

logger = logging.getLogger(__name__)


async def pass_through(gateway: Gateway, call: Call, request: PassedRequest, reply: Reply) -> None:
    """Raises ``ApiError``."""
    call.model_asked = request.model
    if call.who.names_end_user:
        call.end_user = call.end_user or cleaned(request.end_user)
    entry = await gateway.catalogue.find(request.model)
    call.model = call.placed_model = entry.name
    call.is_billed = not call.who.is_self_test
    if not call.who.may_use(entry):
        raise ModelNotAllowedError(entry.name)
    check_task(entry, request.endpoint.task)
    most = most_tokens(entry, request)
    is_counted = most is not NO_TOKENS and call.who.tokens_per_minute is not None
    await gateway.limits.acquire(call, most if is_counted else None, entry.name)
    await _PassedThrough(gateway, call, request, entry, most, reply).run()


class _PassedThrough:
    def __init__(
        self,
        gateway: Gateway,
        call: Call,
        request: PassedRequest,
        entry: CatalogueEntry,
        most: TokenBounds,
        reply: Reply,
    ) -> None:
        self._gateway = gateway
        self._call = call
        self._request = request
        self._entry = entry
        self._most = most
        self._reply = reply
        self._unit = UNIT_OF_TASK[entry.task]
        self._deadline_s = asyncio.get_running_loop().time() + gateway.config.request_timeout_s
        self._failover = Failover(
            gateway.placer,
            gateway.upstreams,
            call,
            entry,
            entry.ordered_targets,
            deadline_s=self._deadline_s,
        )

    async def run(self) -> None:
        self._failover.begin()
        await self._reserve()
        await self._failover.run(self._attempt)

    async def _reserve(self) -> None:
        call, most_units = self._call, self._request.most_units
        each = [self._metered(one, most_units) for one in self._failover.permitted()]
        call.metered = max(each, key=lambda metered: metered.micro_usd)
        try:
            if call.is_billed:
                await self._gateway.accounting.reserve(call, self._most)
        finally:
            call.metered = NOT_METERED

    def _metered(self, target: Target, units: int) -> Metered:
        prices = self._entry.unit_prices_at(target).less(self._call.discount_percent)
        return prices.metered(self._unit, units)

    async def _attempt(self, target: Target) -> None:
        served = target.upstream_model
        assert served is not None, "a task that no engine has"
        call, loop = self._call, asyncio.get_running_loop()
        upstream = permitted_upstream(self._gateway.pseudonym, call, self._entry, served)
        if upstream.dialect != "openai":
            raise UnsupportedParameterError(
                "model", f"the upstream {upstream.name} speaks no dialect that has this endpoint"
            )
        link = await self._gateway.upstreams.link(upstream)
        since_s = loop.time()
        place_s = min(self._deadline_s, self._failover.place_deadline_s or self._deadline_s)
        with await link.take_place(timeout_s=max(0.0, place_s - since_s)) as place:
            self._failover.is_sent = True
            call.neuron = f"{UPSTREAM_PREFIX}{upstream.name}"
            counter = UsageCounter()
            self._gateway.accounting.submitted(call, counter)
            answer = PassedAnswer(link, call, self._request, self._reply, place)
            headers = attempt_headers(self._gateway.pseudonym, call, upstream, served, since_s)
            content, content_headers = self._content(served.model)
            try:
                await answer.pass_on(
                    content, {**headers, **content_headers}, deadline_s=self._deadline_s
                )
            finally:
                self._settle(answer, target, counter)
                counter.settle_as_counted()

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

    def _settle(self, answer: PassedAnswer, target: Target, counter: UsageCounter) -> None:
        if not answer.has_begun:
            return
        request, (reported, reported_tokens) = self._request, answer.reported
        units = request.likely_units
        if reported is not None and reported <= request.most_units:
            units = reported
        else:
            self._call.is_usage_estimated = not (request.is_exact and answer.is_whole)
        if reported is not None and reported > request.most_units:
            logger.warning(
                "request %s: its upstream reports %d %ss, and %d are the most; they are estimated",
                self._call.request_id,
                reported,
                self._unit,
                request.most_units,
            )
        self._call.metered = self._metered(target, units)
        if self._entry.charges_tokens_at(target):
            used = believed(reported_tokens, self._most)
            if used is None:
                self._call.is_usage_estimated = True
                used = estimate(self._most, request, units=units, num_bytes=answer.num_bytes)
            counter.settle(used)


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
    num_answers = request.most_units if request.endpoint.task == "images" else 1
    return TokenBounds(
        prompt_tokens=entry.max_context_tokens or 0,
        output_tokens=(entry.max_output_tokens or 0) * num_answers,
        default_output_tokens=0,
        num_choices=1,
    )


def believed(reported: Usage | None, most: TokenBounds) -> Usage | None:
    """``None``: nothing is reported, or more than possible."""
    if reported is None:
        return None
    is_within = reported.completion_tokens <= (most.output_tokens or 0)
    return reported if is_within and reported.prompt_tokens <= most.prompt_tokens else None


def estimate(most: TokenBounds, request: PassedRequest, *, units: int, num_bytes: int) -> Usage:
    prompt_tokens, output_tokens = most.prompt_tokens, most.output_tokens or 0
    if request.endpoint.task == "transcription":
        prompt_tokens = min(prompt_tokens, units * TOKENS_A_SECOND)
        output_tokens = min(output_tokens, -(-num_bytes // BYTES_A_TOKEN))
    else:
        output_tokens = output_tokens * units // max(1, request.most_units)
    return Usage(prompt_tokens=prompt_tokens, completion_tokens=output_tokens)


class PassThroughConsumer(ApiConsumer):
    method = "POST"

    def __init__(self, *, gateway: Gateway, passed: PassedEndpoint) -> None:
        super().__init__(gateway=gateway, endpoint=passed.path)
        self._passed = passed
        self._form = spooled_file() if passed.is_form else None

    async def keep_body(self, part: bytes) -> None:
        if self._form is None:
            await super().keep_body(part)
        else:
            await asyncio.to_thread(self._form.write, part)

    async def answer(self, body: bytes) -> None:
        if self._form is None:
            request = await parse_aside(partial(read_json, self._passed, body), len(body))
        else:
            request = await asyncio.to_thread(self._read_form)
        await pass_through(self.gateway, self.call, request, self)

    async def begin_events(self, *, type_: bytes) -> None:
        """Starts a stream of events. Where it fails later, an error is its last one."""
        await self.start_response(200, [(b"content-type", type_), *UNBUFFERED])

    def _read_form(self) -> PassedRequest:
        assert self._form is not None, "an endpoint of JSON"
        content_type = self.context().headers.get("content-type", "")
        return read_upload(self._passed, read_form(content_type, self._form))
