"""Tries one request at a replica, and retries it at another one where no engine accepted it.

``fleet.placement.targets`` decides which failures are retried, and how often. A request that its
neuron was preparing when it died is not: the marks in Redis show it
(``inference.protocol.delivery``). Each attempt has its own id, so that no late event of an earlier
one is taken for an answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from fleet.catalogue import CatalogueEntry
from fleet.placement import RoutingHint
from fleet.placement.targets import may_place_again
from inference.gateway.gateway import Gateway
from inference.gateway.request.admission import with_sampling_defaults, without_cache_marks
from inference.gateway.request.answer_check import AnswerCheck
from inference.gateway.request.event_stream import RequestStream
from inference.gateway.request.outcome import Call
from inference.gateway.request.place import Place, routing_hint
from inference.gateway.request.reserve import TokenBudget
from inference.gateway.request.tokens import TokenBounds, UsageCounter, num_prompts, token_bounds
from inference.protocol.delivery import blame, broke_worker
from inference.protocol.events import ANSWERS, Event
from inference.protocol.generation import GenerationRequest, Request, Submit
from inference.protocol.load import AdapterSpec
from inference.wire.errors import ApiError, RequestFailedError
from inference.wire.images import ImageFile

logger = logging.getLogger(__name__)

FINAL_USAGE_TIMEOUT_S = 30.0
"""After that a cancelled request is charged for the tokens counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """``deadline_s`` is for the first token, on the event loop's clock like the others. ``abort``
    is called when the events are not read as fast as they come."""

    gateway: Gateway
    call: Call
    request: Request
    entry: CatalogueEntry
    """The entry that decides the place: an adapter's is its base's."""
    deadline_s: float
    abort: Callable[[], None]
    files: Sequence[ImageFile] = ()
    adapter: AdapterSpec | None = None
    place_deadline_s: float | None = None
    """Ends the wait for a replica, or for a place of the upstream; ``None``: ``deadline_s``."""
    queue_deadline_s: float | None = None
    """For the replica's queue; ``None``: the model's limit."""
    floor: TokenBounds | None = None
    """Caps reserve at least this, for another target that may still serve the request."""

    @property
    def place_until_s(self) -> float:
        return self.place_deadline_s or self.deadline_s


class RunningRequest(Protocol):
    """``begin``, then ``next_events`` until the last one, then ``close``."""

    @property
    def is_sent(self) -> bool:
        """Whether an engine or upstream may have begun it."""
        ...

    async def begin(self) -> None: ...

    async def next_events(self) -> list[Event]:
        """At least one event. Raises the ``ApiError`` it failed with."""
        ...

    def close(self) -> None: ...


async def until_ended(stream: RunningRequest) -> AsyncIterator[list[Event]]:
    """Raises the ``ApiError`` it failed with."""
    while True:
        events = await stream.next_events()
        yield events
        if isinstance(events[-1], ANSWERS):
            return


class PlacedRequest:
    """Belongs to one event loop."""

    def __init__(self, asked: Asked, *, num_attempts: int = 0) -> None:
        """``num_attempts``: those that another ``PlacedRequest`` has made for the call."""
        self._asked = asked
        self._gateway, self._call, self._entry = asked.gateway, asked.call, asked.entry
        self._request = with_sampling_defaults(
            without_cache_marks(asked.request), asked.entry.sampling_defaults
        )
        self._files = asked.files
        self.is_sent = False
        self.num_attempts = num_attempts
        self._num_worker_deaths = 0
        self._uncounted: dict[str, list[str]] = defaultdict(list)
        self._stream: RequestStream | None = None
        self._budget = TokenBudget(asked)

    async def begin(self) -> None:
        self.is_sent = False
        self._call.placed_model = self._entry.name
        place = await self._find_place()
        self._call.was_cold = self._call.was_cold or place.was_cold
        if not self._budget.is_reserved:
            await self._budget.reserve(_bounds_at(place, self._request))
        try:
            await self._gateway.liveness.ensure_announced()
            await self._gateway.readers.ensure(place.replica.neuron)
            self._open(place)
        except BaseException:
            if self._stream is None:
                self._gateway.accounting.release(self._call)
            raise

    async def _find_place(self) -> Place:
        finding = self._gateway.placer.find_place(
            self._entry, deadline_s=self._asked.place_until_s, hint=self._hint
        )
        spans = self._call.spans
        return await (finding if spans is None else spans.placing(finding))

    async def next_events(self) -> list[Event]:
        while True:
            stream = self._stream
            assert stream is not None, "a request that has not begun"
            try:
                return await stream.next_events()
            except ApiError as error:
                if not stream.accepted and await self._budget.extends(error):
                    self._leave(stream, error)
                    await self.begin()
                    continue
                if error.code == "neuron_lost" and not stream.accepted:
                    await self._check_blame(stream.neuron)
                if not may_place_again(
                    error.code, is_accepted=stream.accepted, num_attempts=self.num_attempts
                ):
                    raise
                logger.info(
                    "request %s is retried on another replica: %s (%s)",
                    self._call.request_id,
                    error.code,
                    stream.neuron,
                )
                self._gateway.placer.refused(stream.model, stream.neuron)
                self._leave(stream, error)
                if error.code == "neuron_lost":
                    # It may be alive after all, so it is told to drop the request.
                    self._gateway.dispatcher.cancel_soon(stream.neuron, stream.request_id)
            await self.begin()

    async def _check_blame(self, neuron: str) -> None:
        marks = await self._gateway.liveness.preparing(neuron)
        found = blame(marks, self._uncounted[neuron], self._num_worker_deaths)
        self._num_worker_deaths = found.num_worker_deaths
        self._uncounted[neuron] = [one for one in self._uncounted[neuron] if one not in marks]
        if not found.may_deliver_again:
            raise RequestFailedError(broke_worker("the neuron"))

    def keep(self) -> None:
        self._budget.keep()

    def close(self) -> None:
        if self._stream is not None:
            self._end(self._stream)
        self._files = ()

    def _hint(self) -> RoutingHint:
        who = self._call.who
        return routing_hint(
            self._request, model=self._model, salt="" if who.is_anonymous else who.account
        )

    @property
    def _model(self) -> str:
        return self._entry.name if self._asked.adapter is None else self._asked.adapter.name

    def _open(self, place: Place) -> None:
        self.is_sent = True
        self.num_attempts += 1
        neuron, model = place.replica.neuron, place.replica.model
        self._uncounted[neuron].append(self._attempt_id())
        timeout_s = self._asked.deadline_s - asyncio.get_running_loop().time()
        self._call.neuron = neuron
        counter = UsageCounter(partial(self._accepted, self.num_attempts))
        self._gateway.accounting.submitted(self._call, counter)
        most = self._budget.most_usage(
            num_prompts=num_prompts(self._request), context_tokens=place.replica.context_tokens
        )
        self._stream = RequestStream(
            request_id=self._attempt_id(),
            neuron=neuron,
            epoch=place.epoch,
            model=model,
            first_token_timeout_s=timeout_s,
            abort=self._asked.abort,
            usage_counter=counter,
            check=AnswerCheck(
                self._request,
                most,
                is_captured=self._call.capture is not None,
                is_traced=self._call.spans is not None,
            ),
        )
        self._gateway.streams.add(self._stream)
        self._submit(self._stream, self._frame(neuron, model, timeout_s))

    def _traceparent(self, neuron: str) -> str:
        """Empty: its neuron reports no times."""
        spans, counter = self._call.spans, self._call.usage_counter
        if spans is None or counter is None:
            return ""
        return spans.begin_neuron(neuron, counter)

    def _submit(self, stream: RequestStream, submit: Submit) -> None:
        if self._files:
            stream.follow(asyncio.ensure_future(self._submit_with_images(stream, submit)))
        else:
            stream.follow(self._gateway.dispatcher.push(stream.neuron, submit))

    async def _submit_with_images(self, stream: RequestStream, submit: Submit) -> None:
        await self._gateway.image_sender.put(
            stream.neuron,
            submit.request_id,
            self._files,
            timeout_s=submit.deadline_unix_s - time.time(),
        )
        await self._gateway.dispatcher.push(stream.neuron, submit)

    def _end(self, stream: RequestStream) -> None:
        """The neuron of an unsettled attempt may hold blocks; its last event reports the usage."""
        stream.end()
        if self._files:
            self._gateway.image_sender.forget_soon(stream.neuron, stream.request_id)
        streams = self._gateway.streams
        if stream.usage_counter.is_settled:
            streams.remove(stream)
            return
        self._gateway.dispatcher.cancel_soon(stream.neuron, stream.request_id)
        stream.settle_within(FINAL_USAGE_TIMEOUT_S, partial(streams.remove, stream))

    def _leave(self, stream: RequestStream, error: ApiError) -> None:
        if self._call.spans is not None:
            self._call.spans.leave_attempt(error.code)
        self._end(stream)

    def _accepted(self, attempt: int, prompt_tokens: int) -> None:
        stream = self._stream
        if self._files and stream is not None and attempt == self.num_attempts:
            self._gateway.image_sender.forget_soon(stream.neuron, stream.request_id)
            self._files = ()
        self._budget.accepted(prompt_tokens)

    def _attempt_id(self) -> str:
        request_id = self._call.request_id
        return request_id if self.num_attempts == 1 else f"{request_id}.{self.num_attempts}"

    def _frame(self, neuron: str, model: str, timeout_s: float) -> Submit:
        principal = self._call.who
        request_id = self._attempt_id()
        return Submit(
            request_id=request_id,
            gateway_id=self._gateway.gateway_id,
            model=model,
            request=self._request,
            deadline_unix_s=time.time() + timeout_s,
            account=principal.account,
            key=principal.key,
            weight=principal.weight,
            is_anonymous=principal.is_anonymous,
            yields=self._call.yields,
            endpoint=self._call.endpoint,
            max_prompt_tokens=self._budget.max_prompt_tokens,
            cap_output_tokens=self._budget.cap_output_tokens,
            adapter=self._asked.adapter,
            captures=self._call.capture is not None,
            traceparent=self._traceparent(neuron),
            num_worker_deaths=self._num_worker_deaths,
            max_queue_wait_s=self._max_queue_wait_s(),
        )

    def _max_queue_wait_s(self) -> float | None:
        """``None``: the model's limit. Several choices begin one after the other, and one that
        times out would end those that have begun."""
        request, until_s = self._request, self._asked.queue_deadline_s
        has_one = isinstance(request, GenerationRequest) and num_prompts(request) * request.n == 1
        if until_s is None or not has_one:
            return None
        return max(0.0, until_s - asyncio.get_running_loop().time())


def _bounds_at(place: Place, request: Request) -> TokenBounds:
    return token_bounds(
        request,
        context_tokens=place.replica.context_tokens,
        max_output_tokens=place.replica.max_output_tokens,
        catalogue_context_tokens=place.catalogue_context_tokens,
        vision=None if place.replica.report is None else place.replica.report.vision,
    )
