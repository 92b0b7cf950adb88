"""One request of a batch, on the same request path as every other: keys, budgets, limits, ledger.

It yields to everybody: it is not begun while others wait for its model, and in every queue it comes
after them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import IO, Any

from inference.gateway.consumers.generate import unix_time_s
from inference.gateway.gateway import Gateway
from inference.gateway.request.run import run_request
from inference.gateway.server.bodies import spooled_file
from inference.protocol.events import ANSWERS
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.preparing import MAX_DEATHS, broke_worker
from inference.request_ids import new_request_id
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.common.batch_lines import BatchLine
from inference.wire.dialect import RequestContext, with_escaped_line_ends
from inference.wire.errors import (
    ApiError,
    InvalidRequestError,
    ModelNotFoundError,
    RequestFailedError,
)
from inference.wire.openai import embeddings as openai_embeddings
from inference.wire.openai.chat import request as openai_chat
from inference.wire.openai.completions import request as openai_completions
from metering.ledger.entries import FINISHED
from metering.principal import Principal

PARSERS: dict[str, Callable[[bytes, RequestContext], Any]] = {
    "/v1/chat/completions": openai_chat.parse,
    "/v1/completions": openai_completions.parse,
    "/v1/embeddings": openai_embeddings.parse,
    "/v1/messages": anthropic_messages.parse,
}
ENGINE_ENDED = frozenset({"engine_crashed", "engine_hung", "device_fault"})
"""What a request fails with whose engine ended under it and others."""
NEURON_LOST = "neuron_lost"
"""What an accepted request fails with whose neuron died, of whatever cause."""
MAX_NEURON_LOSSES = 2
"""After how many a row is run once more. A host may lose power more often than an engine crashes,
but a row whose text ends its neuron would end one instance after the other."""
LOOK_FOR_ROOM_S = 0.5
MOST_PAUSE_S = 60.0


class ExpiredError(Exception):
    """The batch's time is over."""


class BatchRow:
    def __init__(
        self, gateway: Gateway, line: BatchLine, *, endpoint: str, alone: asyncio.Lock
    ) -> None:
        """``alone`` is shared by the batch's rows: those under which an engine or a neuron has died
        run one after the other, so that the row that ends it is not run beside them again."""
        self.request_id = new_request_id()
        self._alone = alone
        self._num_worker_deaths = 0
        self._num_neuron_losses = 0
        self._gateway = gateway
        self._line = line
        self._endpoint = endpoint

    async def answer(
        self, find_principal: Callable[[], Awaitable[Principal]], *, until_unix_s: float
    ) -> IO[bytes]:
        """The body of its answer, from its beginning. What may succeed later is tried again, after
        the end of an engine once, after that of a neuron twice.
        Raises ``ApiError``, ``ExpiredError``."""
        parse = partial(PARSERS[self._endpoint], self._line.body, RequestContext())
        parsed = await self._gateway.images.parsed(parse, len(self._line.body))
        if getattr(parsed, "stream", False):
            raise InvalidRequestError("A request of a batch is not streamed.", param="stream")
        while True:
            try:
                await self._wait_for_room(_inside(parsed).model, until_unix_s)
                is_suspect = self._num_worker_deaths + self._num_neuron_losses > 0
                async with self._alone if is_suspect else nullcontext():
                    return await self._run(parsed, await find_principal())
            except ApiError as error:
                if error.retry_after_s is None:
                    raise
                await _pause(error.retry_after_s, until_unix_s)
                self.request_id = new_request_id()

    async def _run(self, parsed: Any, principal: Principal) -> IO[bytes]:
        call = self._gateway.open_call(request_id=self.request_id, endpoint=self._endpoint)
        call.identify(principal)
        call.capture_request(self._line.body)
        call.yields = True
        call.discount_percent = self._gateway.config.batch_discount_percent
        written = spooled_file()
        try:
            async with run_request(
                self._gateway, call, _inside(parsed), abort=_nobody_to_abort
            ) as stream:
                encoder = parsed.body_encoder(request_id=self.request_id, clock=unix_time_s)
                has_ended = False
                while not has_ended:
                    events = await stream.next_events()
                    frames = [with_escaped_line_ends(encoder.encode(event)) for event in events]
                    written.writelines(frames)
                    call.capture_answer(b"".join(frames))
                    has_ended = isinstance(events[-1], ANSWERS)
            call.outcome = FINISHED
        except ApiError as error:
            failed = self._blamed(error)
            call.fail(failed)
            raise failed from error
        finally:
            call.close()
        written.seek(0)
        return written

    def _blamed(self, error: ApiError) -> ApiError:
        """What it failed with; where more engines or neurons have died under it than may, that it
        ends them."""
        self._num_worker_deaths += error.code in ENGINE_ENDED
        self._num_neuron_losses += error.code == NEURON_LOST
        if error.code in ENGINE_ENDED and self._num_worker_deaths > MAX_DEATHS:
            return RequestFailedError(broke_worker("an engine"))
        if error.code == NEURON_LOST and self._num_neuron_losses > MAX_NEURON_LOSSES:
            return RequestFailedError(broke_worker("a neuron"))
        return error

    async def _wait_for_room(self, model: str, until_unix_s: float) -> None:
        while not await self._has_room(model):
            await _pause(LOOK_FOR_ROOM_S, until_unix_s)

    async def _has_room(self, model: str) -> bool:
        """One place is left to others, where a replica has more than one. A model that is not
        loaded has room: it is loaded as for any request."""
        try:
            entry = await self._gateway.catalogue.find(model)
        except ModelNotFoundError:
            return True  # the run reports it for each line
        snapshot = await self._gateway.liveness.placing_snapshot()
        ready = [
            replica
            for replica in snapshot.replicas_of(entry.name)
            if replica.status is ReplicaStatus.READY
        ]
        return not ready or any(
            replica.queue_depth == 0
            and (
                replica.in_flight == 0
                or replica.max_in_flight is None
                or replica.in_flight + 1 < replica.max_in_flight
            )
            for replica in ready
        )


async def _pause(wanted_s: float, until_unix_s: float) -> None:
    left_s = until_unix_s - time.time()
    if left_s <= 0:
        raise ExpiredError
    await asyncio.sleep(min(wanted_s, left_s, MOST_PAUSE_S))


def _inside(parsed: Any) -> Any:
    return parsed.embedding if hasattr(parsed, "embedding") else parsed.generation


def _nobody_to_abort() -> None:
    """The stream fails by itself when its events are not taken."""
