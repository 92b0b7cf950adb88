"""One request on its way through the fleet: found, permitted, placed, paid for, submitted.

    find model ─▶ permit ─▶ find place ─▶ reserve ─▶ Submit ─▶ RequestStream … ─▶ settle
                  403/429   may load it   429        narrowed when accepted

For whoever has a request to run, with a client waiting or not. Must not know HTTP or dialects.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fleet.catalogue import CatalogueEntry
from inference.gateway.call import Call
from inference.gateway.gateway import Gateway
from inference.gateway.placing import Place
from inference.gateway.streams import RequestStream
from inference.gateway.tally import Tally
from inference.gateway.token_bounds import TokenBounds, is_billed, token_bounds
from inference.protocol.generation import Request, Submit
from inference.wire.errors import ModelNotAllowedError
from metering.entries import Granted
from metering.prices import FREE


@asynccontextmanager
async def run_request(
    gateway: Gateway, call: Call, request: Request, *, abort: Callable[[], None]
) -> AsyncIterator[RequestStream]:
    """The stream of its events; while Redis stands still nothing comes. Leaving the block before
    the last one cancels it; what it used by then is charged all the same. ``abort`` is called when
    the events are not taken as fast as they come. Raises ``ApiError``."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + gateway.config.request_timeout_s
    entry = await gateway.catalogue.find(request.model)
    call.model = entry.name
    call.is_billed = is_billed(request)
    call.prices = entry.prices or FREE
    await permit(gateway, call, entry, request)
    place = await gateway.placer.find_place(entry, deadline_s=deadline_s)
    call.was_cold = place.was_cold
    bounds = _bounds_at(place, request)
    granted = await _hold(gateway, call, bounds)
    try:
        timeout_s = deadline_s - loop.time()
        await gateway.liveness.ensure_announced()
        stream = _open_stream(gateway, call, place, bounds, granted, timeout_s, abort)
    except BaseException:
        gateway.accounting.let_go(call)
        raise
    try:
        gateway.submit(stream, _submit(gateway, call, place, request, bounds, granted, timeout_s))
        yield stream
    finally:
        gateway.close_stream(stream)


async def permit(gateway: Gateway, call: Call, entry: CatalogueEntry, request: Request) -> None:
    """Refuses before anything is loaded for it. Raises ``ApiError``."""
    principal = call.who
    if not principal.may_use(entry.name):
        raise ModelNotAllowedError(entry.name)
    await gateway.limits.acquire(call, request)
    if call.is_billed and principal.budgets and not await gateway.is_ready(entry.name):
        # A model may be loaded for it, which a spent budget is no reason for.
        await gateway.accounting.hold(call, _least(request))
        gateway.accounting.let_go(call)


def _least(request: Request) -> TokenBounds:
    """What it takes at the very least, where no replica has told its limits yet."""
    bounds = token_bounds(request, context_tokens=None, max_output_tokens=None)
    return TokenBounds(
        prompt_tokens=1,
        output_tokens=None,
        default_output_tokens=bounds.num_choices,
        num_choices=bounds.num_choices,
    )


def _bounds_at(place: Place, request: Request) -> TokenBounds:
    return token_bounds(
        request, context_tokens=place.context_tokens, max_output_tokens=place.max_output_tokens
    )


async def _hold(gateway: Gateway, call: Call, bounds: TokenBounds) -> Granted | None:
    return await gateway.accounting.hold(call, bounds) if call.is_billed else None


def _open_stream(
    gateway: Gateway,
    call: Call,
    place: Place,
    bounds: TokenBounds,
    granted: Granted | None,
    timeout_s: float,
    abort: Callable[[], None],
) -> RequestStream:
    def accepted(prompt_tokens: int) -> None:
        if granted is not None and prompt_tokens < bounds.prompt_tokens:
            gateway.accounting.narrow(
                call, prompt_tokens=prompt_tokens, output_tokens=granted.output_tokens
            )

    call.neuron = place.neuron
    call.tally = Tally(accepted)
    return gateway.open_stream(
        call.request_id, place, timeout_s=timeout_s, abort=abort, tally=call.tally
    )


def _submit(
    gateway: Gateway,
    call: Call,
    place: Place,
    request: Request,
    bounds: TokenBounds,
    granted: Granted | None,
    timeout_s: float,
) -> Submit:
    principal = call.who
    cap = None
    if granted is not None and bounds.output_tokens is None:
        cap = granted.output_tokens // bounds.num_choices
    return Submit(
        request_id=call.request_id,
        gateway_id=gateway.gateway_id,
        model=place.model,
        request=request,
        deadline_unix_s=time.time() + timeout_s,
        account=principal.account,
        key=principal.key,
        weight=principal.weight,
        is_anonymous=principal.is_anonymous,
        endpoint=call.endpoint,
        max_prompt_tokens=None if granted is None else bounds.prompt_tokens,
        cap_output_tokens=cap,
    )
