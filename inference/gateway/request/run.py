"""Runs one request: finds its model, permits, places, reserves, submits.

Several targets, until one of them has begun its answer:

    run ─▶ choose ─▶ attempt ─▶ kept, once its answer begins
             ▲          │
             └─ leave ──┘ where it fails before; each target is tried once

``fleet.placement.targets`` chooses, and decides which failures fail over. Each attempt's
reservation replaces the one before, and covers the most expensive target left. The counter of the
last attempt is charged. Must not know HTTP or dialects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.targets import Target, When
from fleet.placement.targets import Chosen, TargetState, choose_target, may_fail_over
from inference.gateway.gateway import Gateway
from inference.gateway.images import without_files
from inference.gateway.request.admission import (
    Bounds,
    check_network,
    check_sees,
    check_task,
    permit,
)
from inference.gateway.request.attempt import Asked, PlacedRequest, RunningRequest
from inference.gateway.request.identify import take_end_user
from inference.gateway.request.outcome import Call
from inference.gateway.request.tokens import TokenBounds
from inference.gateway.upstreams.forwarded import ForwardedRequest, forwarded_bounds
from inference.protocol.events import Accepted, Event
from inference.protocol.generation import (
    GenerationRequest,
    Request,
    TokenCountRequest,
    TokenizeRequest,
)
from inference.wire.errors import ApiError, ServiceUnavailableError, upstream_failed
from inference.wire.images import ImageFile
from metering.money import FREE, DearestPrices, Prices

RETRY_AFTER_S = 1.0
UNKNOWN = TargetState(is_ready=False, queue=0, num_requests=0)
QUEUE_TIMEOUT = "queue_timeout"
NOT_ABLE = frozenset({"unsupported_parameter", "vision_unsupported"})
logger = logging.getLogger(__name__)


@asynccontextmanager
async def run_request(
    gateway: Gateway,
    call: Call,
    request: Request,
    *,
    abort: Callable[[], None] = lambda: None,
) -> AsyncIterator[RunningRequest]:
    """While Redis hangs nothing comes. Leaving the block early cancels the request; its usage by
    then is charged. ``abort`` is called when the events are not read as fast as they come. Raises
    ``ApiError``."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + gateway.config.request_timeout_s
    call.model_asked = request.model
    request, end_user = take_end_user(request, call.who)
    call.end_user = call.end_user or end_user
    request, files = without_files(request, gateway.images.rules)
    entry = await gateway.catalogue.find(request.model)
    call.model = entry.name
    only_counts = isinstance(request, TokenCountRequest | TokenizeRequest)
    call.is_billed = not only_counts and not call.who.is_self_test
    call.prices = entry.prices or FREE
    if call.discount_percent:
        call.prices = call.prices.less(call.discount_percent)
    base = entry if entry.base is None else await gateway.catalogue.find(entry.base)
    await permit(gateway, call, entry, base, request)
    check_task(base, "text")
    targets = usable_targets(base, request, is_adapter=entry.base is not None)
    if files and all(target.is_own for target in targets):
        await check_sees(gateway.liveness, base, files)
    if only_counts and targets[0].is_own:
        files = []  # their sizes are enough
    asked = Asked(
        gateway=gateway,
        call=call,
        request=request,
        entry=base,
        deadline_s=deadline_s,
        abort=abort,
        files=files,
        adapter=entry.adapter_spec(),
    )
    running: RunningRequest
    with _stored_counted(gateway.bounds, files):
        served = targets[0].upstream_model
        if not is_plain(targets):
            running = TargetedRequest(asked, targets)
        elif served is not None:
            running = ForwardedRequest(asked, served)
        else:
            running = PlacedRequest(asked)
        await running.begin()
        try:
            yield running
        finally:
            running.close()


@contextmanager
def _stored_counted(bounds: Bounds, files: Sequence[ImageFile]) -> Iterator[None]:
    num_bytes = sum(image.num_bytes for image in files if image.path is None)
    bounds.take_body(num_bytes)
    try:
        yield
    finally:
        bounds.free_body(num_bytes)


def usable_targets(
    entry: CatalogueEntry, request: Request, *, is_adapter: bool
) -> tuple[Target, ...]:
    targets = entry.ordered_targets
    if isinstance(request, GenerationRequest) and not is_adapter:
        return targets
    return (Target(upstream_model=None),) if any(one.is_own for one in targets) else targets[:1]


def is_plain(targets: Sequence[Target]) -> bool:
    first = targets[0]
    return len(targets) == 1 and first.when is When.ALWAYS and first.prices is None


class Failover:
    """Belongs to one event loop. ``run``, and again after each ``leave``, until ``keep``."""

    def __init__(
        self,
        gateway: Gateway,
        call: Call,
        entry: CatalogueEntry,
        targets: Sequence[Target],
        *,
        deadline_s: float,
    ) -> None:
        """``deadline_s`` is for the first token, on the event loop's clock."""
        self._gateway = gateway
        self._call = call
        self._entry = entry
        self._targets = targets
        self._prices = [self._prices_at(target) for target in targets]
        self._deadline_s = deadline_s
        self._began_s = asyncio.get_running_loop().time()
        self._left_out: set[int] = set()
        self._chosen = Chosen(index=0, wait_s=None)
        self._error: ApiError | None = None
        self.is_sent = False

    @property
    def place_deadline_s(self) -> float | None:
        """On the event loop's clock; ``None``: no limit of its own."""
        wait_s = self._chosen.wait_s
        return None if wait_s is None else self._began_s + wait_s

    @property
    def gives_way(self) -> bool:
        return self._chosen.gives_way

    def permitted(self, *without: int) -> list[Target]:
        left_out = self._left_out.union(without)
        return [one for index, one in enumerate(self._targets) if index not in left_out]

    def others(self) -> list[Target]:
        return self.permitted(self._chosen.index)

    def begin(self) -> None:
        """Raises ``ApiError`` where no target is left."""
        self._call.may_move = True
        for index, target in enumerate(self._targets):
            try:
                self._check_may_have(target)
            except ApiError as error:
                self._left_out.add(index)
                if len(self._left_out) == len(self._targets):
                    raise error
        self._call.most_prices = self._most_prices()

    def _check_may_have(self, target: Target) -> None:
        served = target.upstream_model
        upstream = None if served is None else self._entry.upstream_named(served.upstream)
        if upstream is not None:
            check_network(self._entry, upstream, self._call.who)
        if self._entry.lacks_prices_at(target):
            raise upstream_failed(
                f"The prices of {target.name} are its upstream's, which names none."
            )

    def _prices_at(self, target: Target) -> Prices:
        if self._entry.lacks_prices_at(target):
            return FREE
        return self._entry.prices_at(target).less(self._call.discount_percent)

    async def run(self, attempt: Callable[[Target], Awaitable[None]]) -> None:
        """Raises the ``ApiError`` of a target where none is left."""
        while True:
            target = await self._choose()
            try:
                return await attempt(target)
            except ApiError as error:
                self.leave(error)

    def leave(self, error: ApiError) -> None:
        """Raises ``error`` where no other target may be tried."""
        chosen, call = self._chosen, self._call
        target = self._targets[chosen.index]
        now_s = asyncio.get_running_loop().time()
        is_over = not call.may_move or now_s >= self._deadline_s
        if is_over or not may_fail_over(
            error.code, error.status, is_own=target.is_own, is_sent=self.is_sent
        ):
            raise error
        if self._error is None or error.code not in NOT_ABLE:
            self._error = error.with_traceback(None)
        waited_s = now_s - self._began_s
        has_waited = chosen.gives_way and chosen.wait_s is not None and waited_s >= chosen.wait_s
        may_have_begun = self.is_sent and error.code != QUEUE_TIMEOUT
        if may_have_begun or not has_waited:
            if not self.others():
                raise self._error
            self._left_out.add(chosen.index)
        if call.spans is not None:
            call.spans.leave_attempt(error.code)
        call.targets_tried.append(f"{target.name}: {error.code}")
        logger.info(
            "request %s fails over from its target %s: %s", call.request_id, target.name, error.code
        )

    def keep(self) -> None:
        self._call.may_move = False
        self._call.most_prices = None
        self._error = None

    async def _choose(self) -> Target:
        self.is_sent = False
        chosen = choose_target(
            self._targets,
            [await self._state(target) for target in self._targets],
            waited_s=asyncio.get_running_loop().time() - self._began_s,
            left_out=self._left_out,
            is_patient=self._call.yields,
        )
        if chosen is None:
            error, self._error = self._error, None
            raise error or ServiceUnavailableError(
                "no_target_ready",
                f"No target of {self._entry.name} is ready; try again shortly.",
                retry_after_s=RETRY_AFTER_S,
            )
        self._chosen = chosen
        self._call.prices = self._prices[chosen.index]
        self._call.most_prices = self._most_prices()
        return self._targets[chosen.index]

    def _most_prices(self) -> DearestPrices:
        left = [one for i, one in enumerate(self._prices) if i not in self._left_out]
        return DearestPrices(tuple(dict.fromkeys(left)))

    async def _state(self, target: Target) -> TargetState:
        served = target.upstream_model
        if served is not None:
            return self._gateway.upstreams.state_of(served.upstream)
        try:
            return await self._gateway.placer.target_state(self._entry)
        except ServiceUnavailableError:
            return UNKNOWN


class TargetedRequest:
    def __init__(self, asked: Asked, targets: Sequence[Target]) -> None:
        self._asked = asked
        self._call = asked.call
        self._failover = Failover(
            asked.gateway, asked.call, asked.entry, targets, deadline_s=asked.deadline_s
        )
        self._num_placed = 0
        self._attempt: RunningRequest | None = None
        self._held: list[Event] = []
        self._floor: TokenBounds | None = None

    @property
    def is_sent(self) -> bool:
        return self._attempt is not None and self._attempt.is_sent

    async def begin(self) -> None:
        """Raises ``ApiError``."""
        self._failover.begin()
        await self._failover.run(self._begin_at)

    async def next_events(self) -> list[Event]:
        while self._call.may_move:
            assert self._attempt is not None, "a request that has not begun"
            try:
                self._held += await self._attempt.next_events()
            except ApiError as error:
                self._leave(self._attempt, error)
                await self._failover.run(self._begin_at)
                continue
            has_begun = any(not isinstance(event, Accepted) for event in self._held)
            if has_begun or not self._failover.others():
                return self._begun()
        assert self._attempt is not None, "a request that has been closed"
        return await self._attempt.next_events()

    def close(self) -> None:
        attempt, self._attempt = self._attempt, None
        self._held = []
        if attempt is not None:
            attempt.close()

    async def _begin_at(self, target: Target) -> None:
        self._held = []
        attempt = self._attempt = self._made(target)
        try:
            if target.is_own and self._asked.files:
                await check_sees(self._asked.gateway.liveness, self._asked.entry, self._asked.files)
            await attempt.begin()
        except ApiError:
            self._end(attempt)
            raise

    def _leave(self, attempt: RunningRequest, error: ApiError) -> None:
        self._failover.is_sent = attempt.is_sent
        self._failover.leave(error)
        self._end(attempt)

    def _end(self, attempt: RunningRequest) -> None:
        attempt.close()
        self._attempt = None
        if isinstance(attempt, PlacedRequest):
            self._num_placed = attempt.num_attempts

    def _made(self, target: Target) -> RunningRequest:
        place_s = self._failover.place_deadline_s
        asked = replace(
            self._asked,
            place_deadline_s=place_s,
            queue_deadline_s=place_s if self._failover.gives_way else None,
            floor=self._floor_of_others(),
        )
        if (served := target.upstream_model) is not None:
            return ForwardedRequest(asked, served)
        return PlacedRequest(asked, num_attempts=self._num_placed)

    def _floor_of_others(self) -> TokenBounds | None:
        """No target's bounds exceed an upstream's, whose context is not known."""
        if all(target.is_own for target in self._failover.others()):
            return None
        if self._floor is None:
            self._floor = forwarded_bounds(self._asked.request, self._asked.entry)
        return self._floor

    def _begun(self) -> list[Event]:
        self._failover.keep()
        if isinstance(self._attempt, PlacedRequest):
            self._attempt.keep()
        events, self._held = self._held, []
        return events
