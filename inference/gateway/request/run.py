"""One request on its way through the fleet: found, permitted, placed, paid for, submitted.

    find model ─▶ permit ─▶ PlacedRequest: find place ─▶ reserve ─▶ Submit ─▶ events ─▶ settle
                  403/429                  may load it   429        narrowed when accepted

For code that has a request to run, with a client waiting or not. Must not know HTTP or dialects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager

import msgspec

from fleet.catalogue import CatalogueEntry
from inference.gateway.gateway import Gateway
from inference.gateway.images.request_images import without_files
from inference.gateway.request.call import Call
from inference.gateway.request.placed_request import PlacedRequest
from inference.gateway.request.token_bounds import TokenBounds, is_billed, token_bounds
from inference.protocol.generation import (
    GenerationRequest,
    Request,
    TokenCountRequest,
    TokenizeRequest,
)
from inference.protocol.heartbeat import ReplicaStatus
from inference.wire.common.images import ImageFile
from inference.wire.errors import ModelNotAllowedError, VisionUnsupportedError
from metering.prices import FREE


@asynccontextmanager
async def run_request(
    gateway: Gateway, call: Call, request: Request, *, abort: Callable[[], None]
) -> AsyncIterator[PlacedRequest]:
    """Its events; while Redis stands still nothing comes. Leaving the block before the last one
    cancels it; what it used by then is charged all the same. ``abort`` is called when the events
    are not taken as fast as they come. Raises ``ApiError``."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + gateway.config.request_timeout_s
    call.model_asked = request.model
    request, files = without_files(request, gateway.images.rules)
    entry = await gateway.catalogue.find(request.model)
    call.model = entry.name
    call.is_billed = is_billed(request) and not call.who.is_self_test
    call.prices = (entry.prices or FREE).less(call.discount_percent)
    base = entry if entry.base is None else await gateway.catalogue.find(entry.base)
    await permit(gateway, call, entry, base, request)
    if files:
        await check_sees(gateway, base, files)
    if isinstance(request, TokenCountRequest | TokenizeRequest):
        files = []  # their sizes are enough
    request = with_sampling_defaults(request, base.sampling_defaults)
    with _stored_counted(gateway, files):
        placed = PlacedRequest(
            gateway,
            call,
            request,
            base,
            adapter=entry.adapter_spec(),
            files=files,
            deadline_s=deadline_s,
            abort=abort,
        )
        await placed.begin()
        try:
            yield placed
        finally:
            placed.close()


@contextmanager
def _stored_counted(gateway: Gateway, files: Sequence[ImageFile]) -> Iterator[None]:
    """Images that came with the body are counted with it; stored ones take as much room. Raises
    ``ServiceUnavailableError``."""
    num_bytes = sum(image.num_bytes for image in files if image.path is None)
    gateway.bounds.take_body(num_bytes)
    try:
        yield
    finally:
        gateway.bounds.free_body(num_bytes)


async def permit(
    gateway: Gateway, call: Call, entry: CatalogueEntry, base: CatalogueEntry, request: Request
) -> None:
    """Refuses before anything is loaded for it. ``base`` is the entry that is loaded: of an adapter
    another than the entry itself. Raises ``ApiError``."""
    principal = call.who
    if not principal.may_use(entry.name):
        raise ModelNotAllowedError(entry.name)
    # Bounds read the whole prompt, so they are made only where a limit counts its tokens.
    is_counted = principal.tokens_per_minute is not None
    bounds = await _bounds_now(gateway, base, request) if is_counted else None
    await gateway.limits.acquire(call, bounds, base.name)
    if call.is_billed and principal.budgets and not await gateway.is_ready(base.name):
        # A model may be loaded for it, which a spent budget is no reason for. The reservation
        # grows once its place is known, and is released with the call where it finds none.
        await gateway.accounting.reserve(call, _least(request))


async def _bounds_now(gateway: Gateway, base: CatalogueEntry, request: Request) -> TokenBounds:
    """By the limits of the replicas that are ready, else by the model's own. Raises
    ``ServiceUnavailableError``."""
    snapshot = await gateway.liveness.placing_snapshot()
    ready = [
        replica
        for replica in snapshot.replicas_of(base.name)
        if replica.status is ReplicaStatus.READY
    ]
    contexts = [replica.context_tokens for replica in ready]
    outputs = [replica.max_output_tokens for replica in ready]
    return token_bounds(
        request,
        context_tokens=_most(contexts, base.max_context_tokens),
        max_output_tokens=_most(outputs, base.max_output_tokens),
        catalogue_context_tokens=base.max_context_tokens,
    )


def _most(limits: Sequence[int | None], otherwise: int | None) -> int | None:
    """``None``: one of them has no limit that is known."""
    known = [limit for limit in limits if limit is not None]
    return max(known) if known and len(known) == len(limits) else otherwise


def _least(request: Request) -> TokenBounds:
    """The fewest tokens it may take, where no replica has reported its limits yet."""
    bounds = token_bounds(request, context_tokens=None, max_output_tokens=None)
    return TokenBounds(
        prompt_tokens=1,
        output_tokens=None,
        default_output_tokens=bounds.num_choices,
        num_choices=bounds.num_choices,
    )


async def check_sees(gateway: Gateway, entry: CatalogueEntry, files: Sequence[ImageFile]) -> None:
    """Refuses before anything is placed, where a replica has reported its vision: the same files
    may be another model on none. Raises ``VisionUnsupportedError``."""
    snapshot = await gateway.liveness.placing_snapshot()
    ready = [
        replica
        for replica in snapshot.replicas_of(entry.name)
        if replica.status is ReplicaStatus.READY
    ]
    if ready and not any("vision" in replica.capabilities for replica in ready):
        raise VisionUnsupportedError(files[0].path)


def with_sampling_defaults(request: Request, defaults: Mapping[str, float]) -> Request:
    """The operator's sampling defaults of a model, under what the request names itself. Pure.

    ``defaults`` are by the names of ``SamplingOptions``. The neuron fills fields that are still
    unset from the model's own files. Defaults are applied here, so a change of them needs no
    reload.
    """
    if not isinstance(request, GenerationRequest):
        return request
    options = request.sampling
    missing = {name: value for name, value in defaults.items() if getattr(options, name) is None}
    if not missing:
        return request
    return msgspec.structs.replace(request, sampling=msgspec.structs.replace(options, **missing))
