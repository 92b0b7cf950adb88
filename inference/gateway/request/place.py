"""Carries out placement's decisions, until a request has a replica.

``fleet.placement`` decides. Here are the effects, and state newer than any heartbeat: this
gateway's requests, so that a burst spreads over replicas; its loads, so that two models do not get
the same memory; and replicas that have just refused.

Requests that wait for a model share a waiting room: one polls placement every 250 ms. On a place, a
refusal or an error all are woken, and each asks placement for itself, in the order of arrival.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import FleetSnapshot, ReplicaView
from fleet.placement import Decision, Load, Reject, Route, RoutingHint, Wait, place, route
from fleet.placement.decisions import with_load, with_status
from fleet.placement.targets import TargetState, own_state
from inference.gateway.background_loops import SharedWork
from inference.gateway.database import DatabaseCatalogue
from inference.gateway.request.event_stream import RequestStreams
from inference.protocol.events import Failure
from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    GenerationRequest,
    Request,
    TextInput,
    TokensInput,
)
from inference.protocol.heartbeat import ReplicaStatus, WaitingModel
from inference.protocol.keys import HEARTBEAT_INTERVAL_S
from inference.wire.errors import RequestFailedError, ServiceUnavailableError

logger = logging.getLogger(__name__)

LOAD_REPEAT_S = 2.0
"""A load shows in a heartbeat within this; until then it is not started again."""
REFUSED_S = 1.5
UNKNOWN_ETA_RETRY_AFTER_S = 10.0

LOOK_INTERVAL_S = 0.25
RETRY_AFTER_S = 1.0

Hint = Callable[[], RoutingHint]


@dataclass(frozen=True, slots=True)
class Place:
    """``epoch``: the neuron's instance that was ready."""

    replica: ReplicaView
    epoch: str
    catalogue_context_tokens: int | None
    was_cold: bool


@dataclass(slots=True)
class _Room:
    """Its poll ends with the last of its requests."""

    poll: SharedWork[None]
    since_s: float
    num_waiting: int = 0


class Placer:
    def __init__(
        self,
        catalogue: DatabaseCatalogue,
        read_snapshot: Callable[[], Awaitable[FleetSnapshot]],
        streams: RequestStreams,
        *,
        max_waiting: int,
    ) -> None:
        self._catalogue = catalogue
        self._read_snapshot = read_snapshot
        self._streams = streams
        self._max_waiting = max_waiting
        self._rooms: dict[str, _Room] = {}
        self._loads_asked: dict[tuple[str, str], tuple[float, Load, CatalogueEntry]] = {}
        self._refused_s: dict[tuple[str, str], float] = {}
        self._waits: dict[str, Wait] = {}

    @property
    def num_waiting(self) -> int:
        return sum(room.num_waiting for room in self._rooms.values())

    def waiting(self) -> dict[str, WaitingModel]:
        now_s = time.monotonic()
        return {
            model: WaitingModel(num_requests=room.num_waiting, oldest_s=now_s - room.since_s)
            for model, room in self._rooms.items()
        }

    def wait_of(self, model: str) -> Wait | None:
        return self._waits.get(model)

    async def target_state(self, entry: CatalogueEntry) -> TargetState:
        """Raises ``ServiceUnavailableError``."""
        room = self._rooms.get(entry.name)
        return own_state(
            entry,
            await self._snapshot(entry.name),
            sent=self._sent(entry.name),
            num_waiting=0 if room is None else room.num_waiting,
        )

    def refused(self, model: str, neuron: str) -> None:
        self._refused_s[model, neuron] = asyncio.get_running_loop().time()

    async def find_place(
        self, entry: CatalogueEntry, *, deadline_s: float, hint: Hint | None = None
    ) -> Place:
        """``deadline_s`` is on the event loop's clock. Raises ``ApiError``."""
        try:
            return await self._find_place(entry, deadline_s, hint)
        finally:
            if entry.name not in self._rooms:
                self._waits.pop(entry.name, None)

    async def _find_place(
        self, entry: CatalogueEntry, deadline_s: float, hint: Hint | None
    ) -> Place:
        loop = asyncio.get_running_loop()
        was_cold = False
        while True:
            snapshot = await self._snapshot(entry.name)
            decision, entry = await self._decide(entry, snapshot, hint)
            match decision:
                case Route():
                    return _place_of(decision, snapshot, entry, was_cold=was_cold)
                case Reject():
                    raise _refusal(decision)
                case Load():
                    await self._start_load(decision, entry)
                case Wait():
                    pass
            was_cold = True
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                raise _still_waiting(decision)
            await self._wait(entry, left_s)

    async def _wait(self, entry: CatalogueEntry, timeout_s: float) -> None:
        if self.num_waiting >= self._max_waiting:
            raise ServiceUnavailableError(
                "queue_full",
                f"{self._max_waiting:,} requests wait for models to be loaded here, which is as "
                "many as may (HELEXA_MAX_WAITING_REQUESTS).",
                retry_after_s=RETRY_AFTER_S,
            )
        room = self._rooms.get(entry.name)
        if room is None:
            poll = SharedWork(partial(self._poll, entry))
            room = self._rooms[entry.name] = _Room(poll, time.monotonic())
        room.num_waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                await room.poll.join()
        except TimeoutError:
            pass
        finally:
            room.num_waiting -= 1
            if not room.num_waiting:
                room.poll.cancel()
                del self._rooms[entry.name]

    async def _poll(self, entry: CatalogueEntry) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            decision, current = await self._decide(entry, await self._snapshot(entry.name), None)
            if isinstance(decision, Load):
                await self._start_load(decision, current)
            elif isinstance(decision, Route | Reject):
                return

    async def _decide(
        self, entry: CatalogueEntry, snapshot: FleetSnapshot, hint: Hint | None
    ) -> tuple[Decision, CatalogueEntry]:
        """Without a replica the current entry counts: a load that failed meanwhile may have
        reported how much memory it needs."""
        has_choice = len(snapshot.replicas_of(entry.name)) > 1
        sent = self._sent(entry.name) if has_choice else None
        wanted = hint() if hint is not None and has_choice else None
        if routed := route(entry, snapshot, hint=wanted, sent=sent):
            return routed, entry
        catalogue = await self._catalogue.by_name()
        current = catalogue.get(entry.name, entry)
        decision = place(current, snapshot, catalogue=catalogue)
        if isinstance(decision, Wait):
            self._waits[entry.name] = decision
        return decision, current

    async def _start_load(self, load: Load, entry: CatalogueEntry) -> None:
        now_s = asyncio.get_running_loop().time()
        asked = self._loads_asked.get((load.model, load.neuron))
        if asked is not None and now_s - asked[0] < LOAD_REPEAT_S:
            return
        self._loads_asked[load.model, load.neuron] = (now_s, load, entry)
        logger.info("loading %s on %s for a request", load.model, load.neuron)
        await self._catalogue.start_load(load)

    async def _snapshot(self, model: str) -> FleetSnapshot:
        """Adds loads started here and neurons that refused since the last heartbeats."""
        snapshot = await self._read_snapshot()
        now_s = asyncio.get_running_loop().time()
        for key, (asked_s, load, entry) in list(self._loads_asked.items()):
            if now_s - asked_s >= LOAD_REPEAT_S:
                del self._loads_asked[key]
            elif _is_unseen(load, snapshot):
                snapshot = with_load(snapshot, load, entry)
        for (refused, neuron), refused_s in list(self._refused_s.items()):
            if now_s - refused_s >= REFUSED_S:
                del self._refused_s[refused, neuron]
            elif refused == model:
                snapshot = with_status(snapshot, neuron, model, ReplicaStatus.RECOVERING)
        return snapshot

    def _sent(self, model: str) -> Counter[str]:
        since_s = asyncio.get_running_loop().time() - HEARTBEAT_INTERVAL_S
        return Counter(
            stream.neuron
            for stream in self._streams
            if stream.model == model and stream.started_s > since_s
        )


def _is_unseen(load: Load, snapshot: FleetSnapshot) -> bool:
    neuron = snapshot.neuron(load.neuron)
    if neuron is None:
        return False
    replica = neuron.replica_of(load.model)
    return replica is None or replica.status is ReplicaStatus.FAILED


def _place_of(
    decision: Route, snapshot: FleetSnapshot, entry: CatalogueEntry, *, was_cold: bool
) -> Place:
    neuron = snapshot.neuron(decision.neuron)
    assert neuron is not None, "placement routed to a neuron that is not in the snapshot"
    replica = neuron.replica_of(decision.model)
    assert replica is not None, "placement routed to a neuron without the model"
    return Place(replica, neuron.epoch, entry.max_context_tokens, was_cold)


def _refusal(decision: Reject) -> RequestFailedError:
    return RequestFailedError(
        Failure(
            code=decision.code,
            message=decision.message,
            retry_after_s=decision.retry_after_s,
            model_id=decision.model_id,
            suggestion=decision.suggestion,
        )
    )


def _still_waiting(decision: Load | Wait) -> ServiceUnavailableError:
    eta_s = decision.eta_s if isinstance(decision, Wait) else None
    reason = decision.reason if isinstance(decision, Wait) else f"{decision.model} is not loaded"
    return ServiceUnavailableError(
        "model_loading",
        f"{reason}; it did not become ready within the time allowed.",
        retry_after_s=UNKNOWN_ETA_RETRY_AFTER_S if eta_s is None else eta_s,
    )


DIGEST_BYTES = 16
FIRST_CHARACTERS = 1024
MAX_HINTS = 4


def routing_hint(request: Request, *, model: str, salt: str) -> RoutingHint:
    """``salt``: the account, which owns its prefix cache."""
    if not isinstance(request, GenerationRequest):
        return RoutingHint()
    running = hashlib.blake2b(f"{len(model)}/{model}/{salt}".encode(), digest_size=DIGEST_BYTES)
    match request.input:
        case ChatInput(messages=messages):
            return RoutingHint(_of_messages(running, messages))
        case TextInput(texts=texts):
            return RoutingHint(_of_text(running, texts[0]))
        case TokensInput(prompts=prompts):
            longest = FIRST_CHARACTERS * 4 ** (MAX_HINTS - 1)
            return RoutingHint(_of_text(running, ",".join(map(str, prompts[0][:longest]))))


def _of_messages(running: hashlib.blake2b, messages: list[ChatMessage]) -> tuple[bytes, ...]:
    """Digests after the user's messages 1, 2, 4 …, and after a long first one's beginning."""
    hints: list[bytes] = []
    num_of_user, next_of_user = 0, 1
    for message in messages:
        if message.role == "user" and not num_of_user and (start := _start(message)):
            beginning = running.copy()
            beginning.update(start)
            hints.append(beginning.digest())
        running.update(_words(message))
        if message.role != "user":
            continue
        num_of_user += 1
        if num_of_user == next_of_user:
            next_of_user *= 2
            hints.append(running.copy().digest())
            if len(hints) == MAX_HINTS:
                return tuple(hints)
    return tuple(hints) or (running.digest(),)


def _start(message: ChatMessage) -> bytes:
    content = message.content or ""
    if len(content) <= FIRST_CHARACTERS or message.images:
        return b""
    return content[:FIRST_CHARACTERS].encode(errors="replace")


def _words(message: ChatMessage) -> bytes:
    content = message.content or ""
    images = "".join(f"/{image.digest}" for image in message.images)
    return f"{message.role}/{len(content)}/{content}{images}".encode()


def _of_text(running: hashlib.blake2b, text: str) -> tuple[bytes, ...]:
    hints: list[bytes] = []
    start, length = 0, FIRST_CHARACTERS
    while len(hints) < MAX_HINTS and (start < len(text) or not hints):
        running.update(text[start:length].encode(errors="replace"))
        hints.append(running.copy().digest())
        start, length = length, 4 * length
    return tuple(hints)
