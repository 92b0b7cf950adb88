"""Carrying out what placement decides, until a request has a replica to go to.

    find ─▶ snapshot ─▶ place ─┬▶ Route   done
              ▲                ├▶ Reject  refuse
              │                ├▶ Load    start the job ─┐
              │                └▶ Wait ──────────────────┤
              └────────────────────────── WaitingRoom ◀──┘

Deciding is ``fleet.placement``'s. Here are only the effects, and a count of what this gateway has
sent since the neurons last spoke, so that a burst spreads over replicas.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from fleet.catalogue import CatalogueEntry
from fleet.placement import Load, Reject, Route, Wait, place
from fleet.snapshot import FleetSnapshot
from inference.gateway.catalogue import Catalogue
from inference.gateway.streams import RequestStreams
from inference.gateway.waiting_room import WaitingRoom
from inference.protocol.events import Failure
from inference.protocol.keys import HEARTBEAT_INTERVAL_S
from inference.wire.errors import RequestFailedError, ServiceUnavailableError

logger = logging.getLogger(__name__)

LOAD_REPEAT_S = 2.0
"""A load that was asked for shows in a heartbeat within this; until then it is not asked again."""
UNKNOWN_ETA_RETRY_AFTER_S = 10.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request goes: ``epoch`` is the life of the neuron that was seen ready. The limits
    are what its replica told; ``None``: it told none."""

    neuron: str
    epoch: str
    model: str
    context_tokens: int | None = None
    max_output_tokens: int | None = None
    was_cold: bool = False
    """It was loaded for this request, or the request waited for its load."""


class Placer:
    def __init__(
        self,
        catalogue: Catalogue,
        read_snapshot: Callable[[], Awaitable[FleetSnapshot]],
        streams: RequestStreams,
        *,
        max_waiting: int,
    ) -> None:
        """``max_waiting``: requests that may wait for models at once."""
        self._catalogue = catalogue
        self._read_snapshot = read_snapshot
        self._streams = streams
        self._waiting = WaitingRoom(max_waiting=max_waiting)
        self._loads_asked_s: dict[tuple[str, str], float] = {}

    @property
    def num_waiting(self) -> int:
        """Requests whose model is not there yet."""
        return self._waiting.num_waiting

    async def find_place(self, entry: CatalogueEntry, *, deadline_s: float) -> Place:
        """``deadline_s`` is on the event loop's clock. Raises ``ApiError`` when placement refuses,
        the deadline passes, too many wait, or the database or Redis is away."""
        loop = asyncio.get_running_loop()
        was_cold = False
        while True:
            snapshot = self._with_own_requests(entry.name, await self._read_snapshot())
            decision = place(entry, snapshot)
            match decision:
                case Route():
                    return _place_of(decision, snapshot, was_cold=was_cold)
                case Reject():
                    raise _refusal(decision)
                case Load():
                    await self._start_load(decision)
                case Wait():
                    pass
            was_cold = True
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                raise _still_waiting(decision)
            await self._waiting.wait(entry.name, lambda: self._look(entry), timeout_s=left_s)

    async def _look(self, entry: CatalogueEntry) -> bool:
        """For everybody who waits for this model."""
        decision = place(entry, await self._read_snapshot())
        if isinstance(decision, Load):
            await self._start_load(decision)
        return isinstance(decision, Route | Reject)

    async def _start_load(self, load: Load) -> None:
        now_s = asyncio.get_running_loop().time()
        asked_s = self._loads_asked_s.get((load.model, load.neuron))
        if asked_s is not None and now_s - asked_s < LOAD_REPEAT_S:
            return
        self._loads_asked_s[load.model, load.neuron] = now_s
        logger.info("loading %s on %s for a request", load.model, load.neuron)
        await self._catalogue.start_load(model=load.model, neuron=load.neuron)

    def _with_own_requests(self, model: str, snapshot: FleetSnapshot) -> FleetSnapshot:
        """Adds what was sent within the last heartbeat's time. Where the model has one replica
        there is nothing to balance."""
        if len(snapshot.replicas_of(model)) < 2:
            return snapshot
        since_s = asyncio.get_running_loop().time() - HEARTBEAT_INTERVAL_S
        sent = Counter(
            stream.neuron
            for stream in self._streams
            if stream.model == model and stream.started_s > since_s
        )
        neurons = tuple(
            replace(
                neuron,
                replicas=tuple(
                    replace(replica, queue_depth=replica.queue_depth + sent[neuron.name])
                    if replica.model == model
                    else replica
                    for replica in neuron.replicas
                ),
            )
            for neuron in snapshot.neurons
        )
        return replace(snapshot, neurons=neurons)


def _place_of(route: Route, snapshot: FleetSnapshot, *, was_cold: bool) -> Place:
    neuron = snapshot.neuron(route.neuron)
    assert neuron is not None, "placement routed to a neuron that is not in the snapshot"
    replica = next(replica for replica in neuron.replicas if replica.model == route.model)
    return Place(
        neuron=neuron.name,
        epoch=neuron.epoch,
        model=route.model,
        context_tokens=replica.context_tokens,
        max_output_tokens=replica.max_output_tokens,
        was_cold=was_cold,
    )


def _refusal(decision: Reject) -> RequestFailedError:
    return RequestFailedError(
        Failure(code=decision.code, message=decision.message, retry_after_s=decision.retry_after_s)
    )


def _still_waiting(decision: Load | Wait) -> ServiceUnavailableError:
    eta_s = decision.eta_s if isinstance(decision, Wait) else None
    reason = decision.reason if isinstance(decision, Wait) else f"{decision.model} is not loaded"
    return ServiceUnavailableError(
        "model_loading",
        f"{reason}; it did not become ready within the time allowed.",
        retry_after_s=UNKNOWN_ETA_RETRY_AFTER_S if eta_s is None else eta_s,
    )
