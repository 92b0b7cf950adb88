"""One request that an upstream answers: reserved, forwarded and counted like any other, and its
answer as events.

No tokenizer of ours counts the prompt and nothing refuses a longer one, so a cap reserves its sure
bound. The upstream's report is charged; where it reports nothing, or more than was reserved, the
estimate is, and the request is marked. It is sent once.

Time is bounded until the first token and between two, bytes by the answer's tokens. Nothing is read
ahead: a slow client slows its upstream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.targets import UPSTREAM_PREFIX, UpstreamModel
from fleet.upstream_http import unversioned
from fleet.upstreams import UpstreamEntry
from inference.gateway.gateway import Gateway
from inference.gateway.request.admission import permitted_upstream, with_defaults_at
from inference.gateway.request.attempt import Asked
from inference.gateway.request.identify import passed_on
from inference.gateway.request.outcome import Call
from inference.gateway.request.reserve import TokenBudget
from inference.gateway.request.tokens import (
    DEFAULT_OUTPUT_TOKENS,
    TokenBounds,
    UsageCounter,
    num_prompts,
    token_bounds,
)
from inference.gateway.upstreams.links import OK, UpstreamLink, check_status, faults, read_whole
from inference.protocol.events import Embedded, Event, Finished, TokensCounted, Usage
from inference.protocol.generation import GenerationRequest, Request, TokenCountRequest
from inference.wire.errors import InvalidRequestError
from inference.wire.upstream import Sending, not_forwarded
from inference.wire.upstream.answer_events import (
    AnswerEvents,
    FrameError,
    UpstreamErrorObject,
    UpstreamFaultError,
)
from inference.wire.upstream.exchanges import JSON, Exchange, Forwarded, exchange_of, is_forwarded

if TYPE_CHECKING:
    from inference.gateway.upstreams.connection import UpstreamConnection

logger = logging.getLogger(__name__)


class ForwardedRequest:
    _link: UpstreamLink
    _bounds: TokenBounds
    _most: Usage
    _made: AnswerEvents
    _counter: UsageCounter

    def __init__(self, asked: Asked, served: UpstreamModel) -> None:
        self._asked = asked
        self._gateway, self._call, self._entry = asked.gateway, asked.call, asked.entry
        self._request = asked.request
        self._served = served
        self._files = asked.files
        self._budget = TokenBudget(asked)
        self.is_sent = False
        self._uncounted: list[Event] = []
        self._answer: UpstreamAnswer | None = None

    async def begin(self) -> None:
        gateway, call, entry = self._gateway, self._call, self._entry
        call.placed_model = entry.name
        upstream = permitted_upstream(gateway.pseudonym, call, entry, self._served)
        request = self._request = with_defaults_at(self._request, entry, upstream)
        if isinstance(request, TokenCountRequest) and _is_empty(request):
            self._uncounted = [TokensCounted(request_id=call.request_id, prompt_tokens=0)]
            return
        if not isinstance(request, Forwarded) or not is_forwarded(upstream.dialect, request):
            raise not_forwarded(entry.name, upstream.name, upstream.dialect)
        if isinstance(request, GenerationRequest):
            self._check_length(request)
        self._link = await gateway.upstreams.link(upstream)
        self._bounds = forwarded_bounds(request, entry)
        await self._budget.reserve(self._bounds, is_enforced=False)
        exchange = exchange_of(upstream.dialect, request, self._sending(upstream, request))
        self._files = ()
        await self._send(exchange, request)

    async def next_events(self) -> list[Event]:
        if self._uncounted:
            return self._uncounted
        answer = self._answer
        assert answer is not None, "a request that has not begun, or has ended"
        try:
            events = [self._charged(event) for event in await answer.next_events()]
            self._link.has_answered()
            for event in events:
                self._counter.count(event)
        except BaseException as error:
            self._leave(error)
            raise
        if self._made.is_ended:
            self._leave(None)
        return events

    def close(self) -> None:
        self._leave(asyncio.CancelledError())

    def _check_length(self, request: GenerationRequest) -> None:
        asked, most = request.sampling.max_tokens, self._entry.max_output_tokens
        if asked is not None and most is not None and asked > most and not request.ends_at_context:
            raise InvalidRequestError(
                f"'max_tokens' is {asked}; an answer of {self._entry.name} has {most} at most.",
                param="max_tokens",
            )

    def _sending(self, upstream: UpstreamEntry, request: Forwarded) -> Sending:
        return Sending(
            model=self._served.model,
            images={image.digest: image for image in self._files},
            max_tokens=self._max_tokens(request),
            context_tokens=self._entry.max_context_tokens,
            host=urlsplit(upstream.url).hostname or "",
        )

    def _max_tokens(self, request: Forwarded) -> int | None:
        if not isinstance(request, GenerationRequest):
            return None
        limits = (
            request.sampling.max_tokens,
            self._entry.max_output_tokens,
            self._budget.cap_output_tokens,
        )
        least = min((limit for limit in limits if limit is not None), default=None)
        return None if least is None or least >= DEFAULT_OUTPUT_TOKENS else least

    async def _send(self, exchange: Exchange, request: Forwarded) -> None:
        bounds = self._bounds
        most = self._most = self._budget.most_usage(
            num_prompts=num_prompts(request), context_tokens=None
        )
        self._made = AnswerEvents(
            self._call.request_id,
            num_choices=bounds.num_choices if isinstance(request, GenerationRequest) else 0,
            prompt_tokens=min(bounds.estimated_prompt_tokens, most.prompt_tokens),
            max_prompt_tokens=most.prompt_tokens,
            max_output_tokens=most.completion_tokens,
        )
        self._counter, headers = await begin_attempt(
            self._gateway,
            self._call,
            self._link,
            self._served,
            until_s=min(self._asked.deadline_s, self._asked.place_until_s),
        )
        self.is_sent = True
        self._answer = UpstreamAnswer(
            self._link,
            exchange,
            self._made,
            until_s=self._asked.deadline_s,
            max_output_tokens=most.completion_tokens,
            headers=headers,
        )

    def _leave(self, error: BaseException | None) -> None:
        answer, self._answer = self._answer, None
        if answer is None:
            return
        try:
            answer.close()
            if not self._counter.is_settled:
                # A request without a token costs nothing and is not estimated.
                self._call.is_usage_estimated = self._counter.first_token_s is not None
                self._counter.settle_as_counted()
        finally:
            self._link.leave_place(error)

    def _charged(self, event: Event) -> Event:
        if not isinstance(event, Finished | Embedded):
            return event
        most, bounds, reported = self._most, self._bounds, self._made.reported_usage
        if reported is not None and is_within(reported, most):
            self._gateway.limits.ratios.observe(
                self._entry.name, bounds.text_bound, reported.prompt_tokens - bounds.exact_tokens
            )
            return event
        if reported is not None:
            logger.warning(
                "request %s: its upstream reports %d prompt and %d answer tokens, and %d and %d "
                "are the most; they are estimated",
                self._call.request_id,
                reported.prompt_tokens,
                reported.completion_tokens,
                most.prompt_tokens,
                most.completion_tokens,
            )
        self._call.is_usage_estimated = True
        return msgspec.structs.replace(event, usage=self._made.estimated_usage)


MAX_BODY_BYTES = 64 * 1024 * 1024
BYTES_OF_NO_TOKEN = 8 * 1024 * 1024
BYTES_A_TOKEN = 8 * 1024
MAX_ANSWER_BYTES = 512 * 1024 * 1024
TAIL_TIMEOUT_S = 5.0


class UpstreamAnswer:
    def __init__(
        self,
        link: UpstreamLink,
        exchange: Exchange,
        answer: AnswerEvents,
        *,
        until_s: float,
        max_output_tokens: int,
        headers: Mapping[str, str],
    ) -> None:
        self._link = link
        self._exchange = exchange
        self._answer = answer
        self._headers = headers
        self._reader = exchange.reader_of(answer)
        self._frames = exchange.frames()
        now_s = asyncio.get_running_loop().time()
        self._left_s = min(max(0.0, until_s - now_s), link.entry.first_token_timeout_s)
        self._left_bytes = min(
            MAX_ANSWER_BYTES, BYTES_OF_NO_TOKEN + BYTES_A_TOKEN * max_output_tokens
        )
        self._response: UpstreamConnection | None = None
        self._fault: Exception | None = None

    async def next_events(self) -> list[Event]:
        with faults(self._link, lambda: self._answer.is_accepted):
            if self._fault is not None:
                raise self._fault
            if self._response is not None:
                return await self._streamed(self._response)
            response = self._response = await self._sent()
            content_type = response.headers.get("content-type", "")
            is_streamed = self._exchange.content_type != JSON
            if is_streamed and self._exchange.content_type in content_type.lower():
                return await self._streamed(response)
            async with asyncio.timeout(self._left_s):
                body = await read_whole(response, MAX_BODY_BYTES)
            return self._reader.read(body) + self._ended()

    def close(self) -> None:
        response, self._response = self._response, None
        if response is None:
            return
        if self._answer.is_ended:
            self._link.free_drained(response)
        else:
            self._link.free(response)

    async def _sent(self) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._left_s
        headers = {
            "content-type": "application/json",
            "accept": self._exchange.content_type,
            **self._headers,
        }
        exchange = self._exchange
        url = self._link.entry.url
        url = (unversioned(url) if exchange.is_unversioned else url) + exchange.path
        response = await self._link.post(url, exchange.body, headers, until_s=deadline_s)
        self._response = response
        if response.status != OK:
            async with asyncio.timeout_at(deadline_s):
                await check_status(self._link, response)
        self._left_s = deadline_s - loop.time()
        return response

    async def _streamed(self, response: UpstreamConnection) -> list[Event]:
        """Comments are no tokens. Only waiting for the upstream counts, not the client's time."""
        while not self._answer.is_ended:
            part = await self._next_part(response)
            if part is None:
                break
            self._count(len(part))
            events = self._events_of(part)
            response.gathers = self._answer.has_begun
            if events:
                if self._answer.has_begun:
                    pause_s = self._link.entry.token_timeout_s
                    self._left_s = TAIL_TIMEOUT_S if self._answer.has_finished else pause_s
                return events
            if self._fault is not None:
                raise self._fault
        return self._ended()

    def _events_of(self, part: bytes) -> list[Event]:
        """Events before a fault reach the client, and are charged."""
        events: list[Event] = []
        try:
            for frame in self._frames.feed(part):
                if self._answer.is_ended:
                    break
                events += self._reader.read(frame)
        except (UpstreamFaultError, UpstreamErrorObject, FrameError) as fault:
            self._fault = fault
            events += self._answer.take()
        return events

    def _ended(self) -> list[Event]:
        self._answer.end()
        return self._answer.take()

    async def _next_part(self, response: UpstreamConnection) -> bytes | None:
        import httpx2

        loop = asyncio.get_running_loop()
        since_s = loop.time()
        try:
            part = await response.next_part(since_s + self._left_s)
        except (TimeoutError, httpx2.HTTPError):
            if self._answer.has_finished:
                return None  # only its usage is missing
            raise
        self._left_s -= loop.time() - since_s
        return part

    def _count(self, num_bytes: int) -> None:
        self._left_bytes -= num_bytes
        if self._left_bytes < 0:
            raise UpstreamFaultError("more bytes than its tokens can have")


async def begin_attempt(
    gateway: Gateway, call: Call, link: UpstreamLink, served: UpstreamModel, *, until_s: float
) -> tuple[UsageCounter, dict[str, str]]:
    """The caller leaves the place. Returns the counter and the request's headers. Raises
    ``ServiceUnavailableError``."""
    since_s = asyncio.get_running_loop().time()
    await link.take_place(timeout_s=max(0.0, until_s - since_s))
    call.neuron = f"{UPSTREAM_PREFIX}{link.entry.name}"
    counter = UsageCounter()
    gateway.accounting.submitted(call, counter)
    headers = {"via": passed_on(call.via, gateway.pseudonym)}
    if (spans := call.spans) is not None:
        spans.placed(since_s, call.neuron)
        traceparent = spans.begin_upstream(
            link.entry, served.model, call.neuron, counter, endpoint=call.endpoint
        )
        if traceparent:
            headers["traceparent"] = traceparent
    return counter, headers


def forwarded_bounds(request: Request, entry: CatalogueEntry) -> TokenBounds:
    return token_bounds(
        request,
        context_tokens=None,
        max_output_tokens=entry.max_output_tokens,
        catalogue_context_tokens=entry.max_context_tokens,
    )


def is_within(usage: Usage, most: Usage) -> bool:
    is_within = usage.completion_tokens <= most.completion_tokens
    return is_within and usage.prompt_tokens <= most.prompt_tokens


def _is_empty(request: TokenCountRequest) -> bool:
    """Ollama's clients load a model so: there is nothing to count."""
    return not any(message.content for message in request.input.messages)
