"""Runs one request: finds its model, permits, places, reserves, submits.

    find model ─▶ permit ─▶ PlacedRequest: find place ─▶ reserve ─▶ Submit ─▶ events ─▶ settle
                  403/429                  may load it   429        narrowed when accepted
    a model that an upstream serves: ForwardedRequest ─▶ reserve ─▶ answer ─▶ events ─▶ settle
    one with several targets: TargetedRequest ─▶ either of them, and the next where that fails

Must not know HTTP or dialects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.targets import Target, When
from inference.gateway.gateway import Gateway
from inference.gateway.images import without_files
from inference.gateway.request.admission import Bounds, check_sees, check_task, permit
from inference.gateway.request.attempt import Asked, PlacedRequest, RunningRequest
from inference.gateway.request.failover import TargetedRequest
from inference.gateway.request.identify import take_end_user
from inference.gateway.request.outcome import Call
from inference.gateway.request.tokens import is_billed
from inference.gateway.upstreams.forwarded import ForwardedRequest
from inference.protocol.generation import (
    GenerationRequest,
    Request,
    TokenCountRequest,
    TokenizeRequest,
)
from inference.wire.common.parts import ImageFile
from metering.money import FREE


@asynccontextmanager
async def run_request(
    gateway: Gateway,
    call: Call,
    request: Request,
    *,
    abort: Callable[[], None] = lambda: None,
) -> AsyncIterator[RunningRequest]:
    """Runs a request and yields it with its events; while Redis hangs nothing comes. Leaving the
    block before the last event cancels the request; its usage by then is charged all the same.
    ``abort`` is called when the events are not read as fast as they come, which fails the request.
    Raises ``ApiError``."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + gateway.config.request_timeout_s
    call.model_asked = request.model
    request, end_user = take_end_user(request, call.who)
    call.end_user = call.end_user or end_user
    request, files = without_files(request, gateway.images.rules)
    entry = await gateway.catalogue.find(request.model)
    call.model = entry.name
    call.is_billed = is_billed(request) and not call.who.is_self_test
    call.prices = entry.prices or FREE
    if call.discount_percent:
        call.prices = call.prices.less(call.discount_percent)
    base = entry if entry.base is None else await gateway.catalogue.find(entry.base)
    await permit(gateway, call, entry, base, request)
    check_task(base, "text")
    targets = usable_targets(base, request, is_adapter=entry.base is not None)
    if files and all(target.is_own for target in targets):
        await check_sees(gateway.liveness, base, files)
    if isinstance(request, TokenCountRequest | TokenizeRequest) and targets[0].is_own:
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
    """Images that came with the body are counted with it; stored ones take as much room. Raises
    ``ServiceUnavailableError``."""
    num_bytes = sum(image.num_bytes for image in files if image.path is None)
    bounds.take_body(num_bytes)
    try:
        yield
    finally:
        bounds.free_body(num_bytes)


def usable_targets(
    entry: CatalogueEntry, request: Request, *, is_adapter: bool
) -> tuple[Target, ...]:
    """The entry's targets that can answer such a request, at least one: upstreams generate text
    and know no adapters. Pure."""
    targets = entry.ordered_targets
    if isinstance(request, GenerationRequest) and not is_adapter:
        return targets
    return (Target(upstream_model=None),) if any(one.is_own for one in targets) else targets[:1]


def is_plain(targets: Sequence[Target]) -> bool:
    """Whether there is only one target, which is always used, at the model's prices. Pure."""
    first = targets[0]
    return len(targets) == 1 and first.when is When.ALWAYS and first.prices is None
