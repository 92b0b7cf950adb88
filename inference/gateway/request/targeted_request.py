"""One request of a model with several targets: sent to one of them, and to the next one where that
fails before the first token.

    begin ─▶ Failover ─▶ PlacedRequest | ForwardedRequest ─▶ events
               ▲                 │
               └──── leave ──────┘ until the first token

``request.failover`` chooses, and knows what may fail over. Each attempt's reservation is in place
of the one before, and as much as the most expensive target that is left may use. The counter of the
last attempt is charged. Must not know HTTP or dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.targets import Target
from inference.gateway.gateway import Gateway
from inference.gateway.request.call import Call
from inference.gateway.request.failover import Failover
from inference.gateway.request.model_rules import check_sees
from inference.gateway.request.placed_request import PlacedRequest
from inference.gateway.request.running import RunningRequest
from inference.gateway.request.token_bounds import TokenBounds
from inference.gateway.upstreams.forwarded import ForwardedRequest, forwarded_bounds
from inference.protocol.events import Accepted, Event
from inference.protocol.generation import Request
from inference.wire.common.parts import ImageFile
from inference.wire.errors import ApiError


class TargetedRequest:
    """A ``RunningRequest``. Belongs to one event loop."""

    def __init__(
        self,
        gateway: Gateway,
        call: Call,
        request: Request,
        entry: CatalogueEntry,
        targets: Sequence[Target],
        *,
        files: Sequence[ImageFile] = (),
        deadline_s: float,
        abort: Callable[[], None],
    ) -> None:
        """``targets`` and ``deadline_s``: as ``Failover`` has them."""
        self._gateway = gateway
        self._call = call
        self._request = request
        self._entry = entry
        self._failover = Failover(gateway, call, entry, targets, deadline_s=deadline_s)
        self._files = files
        self._deadline_s = deadline_s
        self._abort = abort
        self._num_placed = 0
        """Attempts at own replicas, each of which has an id of its own."""
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
            if has_begun or not self._failover.has_others:
                return self._begun()
        assert self._attempt is not None, "a request that has been closed"
        return await self._attempt.next_events()

    def close(self) -> None:
        attempt, self._attempt = self._attempt, None
        self._held, self._files = [], ()
        if attempt is not None:
            attempt.close()

    async def _begin_at(self, target: Target) -> None:
        """Raises ``ApiError``."""
        self._held = []
        attempt = self._attempt = self._made(target)
        try:
            if target.is_own and self._files:
                await check_sees(self._gateway, self._entry, self._files)
            await attempt.begin()
        except ApiError:
            self._end(attempt)
            raise

    def _leave(self, attempt: RunningRequest, error: ApiError) -> None:
        """Raises the error where no other target may be tried."""
        self._failover.is_sent = attempt.is_sent
        self._failover.leave(error)
        self._end(attempt)

    def _end(self, attempt: RunningRequest) -> None:
        attempt.close()
        self._attempt = None
        if isinstance(attempt, PlacedRequest):
            self._num_placed = attempt.num_attempts

    def _made(self, target: Target) -> RunningRequest:
        place_deadline_s = self._failover.place_deadline_s
        if (served := target.upstream_model) is not None:
            return ForwardedRequest(
                self._gateway,
                self._call,
                self._request,
                self._entry,
                served,
                files=self._files,
                deadline_s=self._deadline_s,
                place_deadline_s=place_deadline_s,
                floor=self._floor_of_others(),
            )
        return PlacedRequest(
            self._gateway,
            self._call,
            self._request,
            self._entry,
            files=self._files,
            deadline_s=self._deadline_s,
            abort=self._abort,
            place_deadline_s=place_deadline_s,
            queue_deadline_s=place_deadline_s if self._failover.gives_way else None,
            num_attempts=self._num_placed,
            floor=self._floor_of_others(),
        )

    def _floor_of_others(self) -> TokenBounds | None:
        """No target's bounds are above those at an upstream, whose context is not known."""
        if all(target.is_own for target in self._failover.others()):
            return None
        if self._floor is None:
            self._floor = forwarded_bounds(self._request, self._entry)
        return self._floor

    def _begun(self) -> list[Event]:
        """Keeps the request at this target, since its first token is here. Returns the events held
        so far."""
        self._failover.keep()
        if isinstance(self._attempt, PlacedRequest):
            self._attempt.keep()
        self._files = ()
        events, self._held = self._held, []
        return events
