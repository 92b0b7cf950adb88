"""One request that an upstream answers: reserved, forwarded and counted like any other.

    begin: may it leave? ─▶ translate ─▶ reserve       next_events: place ─▶ answer ─▶ events
                                                                               └▶ usage, once

No tokenizer of ours counts the prompt and nothing refuses a longer one, so a cap reserves its sure
bound. The upstream's report is charged; where it reports nothing, or more than was reserved, the
estimate is, and the request is marked. It is sent once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.targets import UPSTREAM_PREFIX, UpstreamModel
from fleet.upstreams.entry import UpstreamEntry
from inference.gateway.request.admission import with_defaults_at
from inference.gateway.request.attempt import Asked
from inference.gateway.request.identify import has_passed, passed_on
from inference.gateway.request.outcome import Call
from inference.gateway.request.tokens import (
    DEFAULT_OUTPUT_TOKENS,
    TokenBounds,
    UsageCounter,
    num_prompts,
    token_bounds,
)
from inference.gateway.upstreams.answer import UpstreamAnswer
from inference.gateway.upstreams.links import UpstreamLink, UpstreamPlace
from inference.protocol.events import (
    Embedded,
    Event,
    Failure,
    Finished,
    TokensCounted,
    Usage,
)
from inference.protocol.generation import (
    GenerationRequest,
    Request,
    TokenCountRequest,
)
from inference.wire.common.parts import ImageFile
from inference.wire.errors import (
    ForbiddenError,
    InvalidRequestError,
    RequestFailedError,
)
from inference.wire.upstream.answer_events import AnswerEvents
from inference.wire.upstream.dialects import Exchange, Forwarded, exchange_of, is_forwarded
from inference.wire.upstream.refusals import FAILED
from inference.wire.upstream.sending import Sending, not_forwarded
from metering.principal import Principal

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Attempt:
    made: AnswerEvents
    place: UpstreamPlace
    counter: UsageCounter
    most: Usage
    bounds: TokenBounds
    answer: UpstreamAnswer | None = None


class ForwardedRequest:
    def __init__(
        self,
        asked: Asked,
        served: UpstreamModel,
        *,
        files: Sequence[ImageFile] = (),
        place_deadline_s: float | None = None,
        floor: TokenBounds | None = None,
    ) -> None:
        """``served``: of the entry's source or one of its targets. ``place_deadline_s``, where it
        is earlier than the request's, is for a place of the upstream. ``floor``: see
        ``TokenBudget``."""
        self._gateway, self._call, self._entry = asked.gateway, asked.call, asked.entry
        self._request, self._deadline_s = asked.request, asked.deadline_s
        self._served = served
        self._files = files
        self._place_deadline_s = place_deadline_s or asked.deadline_s
        self._budget = asked.budget(floor)
        self.is_sent = False
        self._uncounted: list[Event] = []
        self._waiting: tuple[UpstreamLink, Exchange, TokenBounds] | None = None
        self._attempt: _Attempt | None = None

    async def begin(self) -> None:
        """Raises ``ApiError``."""
        self._call.placed_model = self._entry.name
        upstream = permitted_upstream(
            self._gateway.pseudonym, self._call, self._entry, self._served
        )
        request = self._request = with_defaults_at(self._request, self._entry, upstream)
        if isinstance(request, TokenCountRequest) and _is_empty(request):
            self._uncounted = [TokensCounted(request_id=self._call.request_id, prompt_tokens=0)]
            return
        if not isinstance(request, Forwarded) or not is_forwarded(upstream.dialect, request):
            raise not_forwarded(self._entry.name, upstream.name, upstream.dialect)
        if isinstance(request, GenerationRequest):
            self._check_length(request)
        link = await self._gateway.upstreams.link(upstream)
        bounds = forwarded_bounds(request, self._entry)
        await self._budget.reserve(bounds, is_enforced=False)
        exchange = exchange_of(upstream.dialect, request, self._sending(upstream, request))
        self._files = ()
        self._waiting = link, exchange, bounds

    async def next_events(self) -> list[Event]:
        if self._uncounted:
            return self._uncounted
        try:
            if self._waiting is not None:
                waiting, self._waiting = self._waiting, None
                await self._begin_attempt(*waiting)
            attempt = self._attempt
            assert attempt is not None, "a request that has not begun, or has ended"
            assert attempt.answer is not None, "an attempt that could not be made"
            events = await attempt.answer.next_events()
            attempt.place.answered()
            events = self._counted(attempt, events)
        except BaseException as error:
            self._leave(error)
            raise
        if attempt.made.is_ended:
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

    async def _begin_attempt(
        self, link: UpstreamLink, exchange: Exchange, bounds: TokenBounds
    ) -> None:
        request, loop = self._request, asyncio.get_running_loop()
        most = self._budget.most_usage(num_prompts=num_prompts(request), context_tokens=None)
        made = AnswerEvents(
            self._call.request_id,
            num_choices=bounds.num_choices if isinstance(request, GenerationRequest) else 0,
            prompt_tokens=min(bounds.estimated_prompt_tokens, most.prompt_tokens),
            max_prompt_tokens=most.prompt_tokens,
            max_output_tokens=most.completion_tokens,
        )
        since_s = loop.time()
        place_s = min(self._deadline_s, self._place_deadline_s) - since_s
        place = await link.take_place(timeout_s=max(0.0, place_s))
        self.is_sent = True
        self._call.neuron = f"{UPSTREAM_PREFIX}{link.entry.name}"
        counter = UsageCounter()
        self._gateway.accounting.submitted(self._call, counter)
        attempt = self._attempt = _Attempt(made, place, counter, most, bounds)
        headers = attempt_headers(
            self._gateway.pseudonym, self._call, link.entry, self._served, since_s
        )
        attempt.answer = UpstreamAnswer(
            link,
            exchange,
            made,
            timeout_s=max(0.0, self._deadline_s - loop.time()),
            max_output_tokens=most.completion_tokens,
            headers=headers,
        )

    def _leave(self, error: BaseException | None) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        try:
            if attempt.answer is not None:
                attempt.answer.close()
            if not attempt.counter.is_settled:
                # A request without a token costs nothing and is not estimated.
                self._call.is_usage_estimated = attempt.counter.first_token_s is not None
                attempt.counter.settle_as_counted()
        finally:
            attempt.place.end(error)

    def _counted(self, attempt: _Attempt, events: list[Event]) -> list[Event]:
        charged = [self._charged(event, attempt) for event in events]
        for event in charged:
            attempt.counter.count(event)
        return charged

    def _charged(self, event: Event, attempt: _Attempt) -> Event:
        if not isinstance(event, Finished | Embedded):
            return event
        made, most, bounds = attempt.made, attempt.most, attempt.bounds
        reported = made.reported_usage
        if reported is not None and _is_within(reported, most):
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
        return msgspec.structs.replace(event, usage=made.estimated_usage)


def permitted_upstream(
    pseudonym: str, call: Call, entry: CatalogueEntry, served: UpstreamModel
) -> UpstreamEntry:
    """Raises ``ApiError``."""
    upstream = entry.upstream_named(served.upstream)
    if upstream is None:
        raise RequestFailedError(
            Failure(code=FAILED, message=f"The upstream {served.upstream} has been removed.")
        )
    check_network(entry, upstream, call.who)
    if has_passed(call.via, pseudonym):
        raise RequestFailedError(
            Failure(
                code=FAILED,
                message=f"The upstream {served.upstream} is not asked: this request came from "
                "here, and an upstream has sent it back.",
            )
        )
    return upstream


def attempt_headers(
    pseudonym: str, call: Call, upstream: UpstreamEntry, served: UpstreamModel, since_s: float
) -> dict[str, str]:
    headers = {"via": passed_on(call.via, pseudonym)}
    spans, counter = call.spans, call.usage_counter
    if spans is None:
        return headers
    assert counter is not None, "an attempt that nothing counts"
    spans.placed(since_s, call.neuron)
    traceparent = spans.begin_upstream(
        upstream, served.model, call.neuron, counter, endpoint=call.endpoint
    )
    return headers | {"traceparent": traceparent} if traceparent else headers


def forwarded_bounds(request: Request, entry: CatalogueEntry) -> TokenBounds:
    return token_bounds(
        request,
        context_tokens=None,
        max_output_tokens=entry.max_output_tokens,
        catalogue_context_tokens=entry.max_context_tokens,
    )


def check_network(entry: CatalogueEntry, upstream: UpstreamEntry, who: Principal) -> None:
    """Raises ``ForbiddenError`` where the model or the caller may not use that network."""
    if not upstream.leaves_network:
        return
    whose = "" if who.may_leave_network else "this key"
    if not entry.may_leave_network:
        whose = entry.name
    if whose:
        raise ForbiddenError(
            "network_not_allowed",
            f"Requests of {whose} may not leave this network, and those to the upstream "
            f"{upstream.name} do.",
            param="model",
        )


def _is_within(usage: Usage, most: Usage) -> bool:
    is_within = usage.completion_tokens <= most.completion_tokens
    return is_within and usage.prompt_tokens <= most.prompt_tokens


def _is_empty(request: TokenCountRequest) -> bool:
    """Ollama's clients load a model so: there is nothing to count."""
    return not any(message.content for message in request.input.messages)
