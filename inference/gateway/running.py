"""One request on its way through the fleet: found, placed, submitted, and let go of.

    find model ─▶ find place ─▶ Submit ─▶ RequestStream … ─▶ cancel, unless the neuron was done

For whoever has a request to run, with a client waiting or not. Must not know HTTP or dialects.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from inference.gateway.gateway import Gateway
from inference.gateway.streams import RequestStream
from inference.protocol.generation import Request, Submit


@asynccontextmanager
async def run_request(
    gateway: Gateway, request_id: str, request: Request, *, abort: Callable[[], None]
) -> AsyncIterator[RequestStream]:
    """The stream of its events. Leaving the block before the last one cancels it. ``abort`` is
    called when the events are not taken as fast as they come. Raises ``ApiError``."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + gateway.config.request_timeout_s
    entry = await gateway.catalogue.find(request.model)
    place = await gateway.placer.find_place(entry, deadline_s=deadline_s)
    timeout_s = deadline_s - loop.time()
    await gateway.liveness.ensure_announced()
    stream = gateway.open_stream(request_id, place, timeout_s=timeout_s, abort=abort)
    try:
        await gateway.dispatcher.push(
            place.neuron,
            Submit(
                request_id=request_id,
                gateway_id=gateway.gateway_id,
                model=place.model,
                request=request,
                deadline_unix_s=time.time() + timeout_s,
            ),
        )
        yield stream
    finally:
        gateway.close_stream(stream)
