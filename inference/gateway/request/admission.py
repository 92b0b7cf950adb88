"""Admits a request: the gateway's own bounds, the key's models, the limits per minute, the entry,
the network that it may not leave.

Limits are charged before anything is loaded for a request, and corrected when it has ended.
Sampling defaults are applied when it is sent, so changing them needs no reload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.settings import Task
from fleet.catalogue.targets import UpstreamModel
from fleet.live.snapshot import FleetSnapshot, ReplicaView
from fleet.upstreams import UpstreamEntry, untranslated_defaults
from inference.gateway.request.identify import has_passed
from inference.gateway.request.outcome import Call, RequestOutcome
from inference.gateway.request.tokens import PromptRatios, TokenBounds, fewest_tokens, token_bounds
from inference.protocol.generation import GenerationRequest, Request
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.refusals import Cause
from inference.redis_link import redis_unavailable
from inference.wire.error_envelopes import ErrorDialect, anthropic_errors
from inference.wire.errors import (
    ApiError,
    ForbiddenError,
    InvalidRequestError,
    ModelNotAllowedError,
    RateLimitExceededError,
    ServiceUnavailableError,
    VisionUnsupportedError,
    upstream_failed,
)
from inference.wire.images import ImageFile
from inference.wire.openai.passed import paths_of
from metering.errors import LimitsUnavailableError, RateLimitedError
from metering.limits import anthropic_headers, openai_headers
from metering.principal import NO_LIMITS, LimitKind, LimitState, Principal
from metering.rate_limiter import RateLimiter

if TYPE_CHECKING:
    from inference.gateway.gateway import Gateway
    from inference.gateway.redis.neurons import Liveness

RETRY_AFTER_S = 1.0


class Bounds:
    def __init__(self, *, max_open_requests: int, max_open_body_bytes: int) -> None:
        self.num_open_requests = 0
        self.num_body_bytes = 0
        self._max_open_requests = max_open_requests
        self._max_open_body_bytes = max_open_body_bytes

    def open_request(self) -> None:
        """Raises ``ServiceUnavailableError``."""
        if self.num_open_requests >= self._max_open_requests:
            raise ServiceUnavailableError(
                "queue_full",
                f"This gateway has {self._max_open_requests:,} requests open, which is as many as "
                "it takes (HELEXA_MAX_OPEN_REQUESTS).",
                retry_after_s=RETRY_AFTER_S,
            )
        self.num_open_requests += 1

    def take_body(self, num_bytes: int) -> None:
        """Raises ``ServiceUnavailableError``."""
        if self.num_body_bytes + num_bytes > self._max_open_body_bytes:
            raise ServiceUnavailableError(
                "queue_full",
                f"The bodies of the requests that are open here take {self._max_open_body_bytes:,} "
                "bytes together, which is the most (HELEXA_MAX_OPEN_BODY_BYTES).",
                retry_after_s=RETRY_AFTER_S,
            )
        self.num_body_bytes += num_bytes

    def free_body(self, num_bytes: int) -> None:
        self.num_body_bytes -= num_bytes

    def close_request(self, num_body_bytes: int) -> None:
        self.num_open_requests -= 1
        self.num_body_bytes -= num_body_bytes


MIN_ANSWER_TOKENS = 1024
"""A request that names no length is admitted when this much of the minute is left for its answer,
or a quarter of a smaller limit."""


class Limiting:
    def __init__(self, limiter: RateLimiter) -> None:
        self.ratios = PromptRatios()
        self._limiter = limiter

    async def acquire(self, call: Call, bounds: TokenBounds | None, model: str) -> None:
        """``bounds`` ``None``: no limit counts tokens. ``model``: whose tokenizer counts. An answer
        of no named length is charged, and capped, at half of the rest of the minute, so that others
        run beside it. Raises ``ApiError``."""
        least = most = prompt = 0
        if bounds is not None:
            prompt = bounds.near(self.ratios, model)
            least, most = _charges(prompt, bounds, call.who.tokens_per_minute or 0)
        try:
            state = await self._limiter.acquire(call.who, call.request_id, least, most=most)
        except RateLimitedError as error:
            call.limit_state = error.state or NO_LIMITS
            raise _limited(error) from error
        except LimitsUnavailableError as error:
            raise redis_unavailable() from error
        call.limit_state = state
        if bounds is not None:
            charged = state.tokens_charged - prompt
            call.charged = replace(bounds, prompt_tokens=prompt, default_output_tokens=charged)

    async def extend(self, call: Call, prompt_tokens: int) -> None:
        """Raises ``ApiError``."""
        charged = call.charged
        assert charged is not None, "a request whose tokens no limit counts"
        try:
            await self._limiter.extend(call.request_id, prompt_tokens - charged.prompt_tokens)
        except RateLimitedError as error:
            raise _limited(error) from error
        except LimitsUnavailableError as error:
            raise redis_unavailable() from error
        call.charged = replace(charged, prompt_tokens=prompt_tokens)

    def settle(self, outcome: RequestOutcome) -> None:
        settle = outcome.settle
        self._limiter.correct(settle.request_id, settle.prompt_tokens + settle.completion_tokens)
        self._limiter.release(settle.request_id)


def limit_headers(state: LimitState, errors: ErrorDialect) -> list[tuple[bytes, bytes]]:
    if state is NO_LIMITS:
        return []
    return anthropic_headers(state) if errors is anthropic_errors else openai_headers(state)


def _charges(prompt: int, bounds: TokenBounds, limit: int) -> tuple[int, int]:
    """The tokens without which it is refused, and the most that it is charged."""
    if bounds.output_tokens is not None:
        return prompt + bounds.output_tokens, prompt + bounds.output_tokens
    most = bounds.default_output_tokens
    least = max(bounds.num_choices, min(MIN_ANSWER_TOKENS, (limit - prompt) // 4))
    return prompt + min(least, most), prompt + most


CAUSES = {
    LimitKind.REQUESTS: Cause.REQUESTS_PER_MINUTE,
    LimitKind.TOKENS: Cause.TOKENS_PER_MINUTE,
    LimitKind.CONCURRENCY: Cause.MAX_CONCURRENT,
}


def _limited(error: RateLimitedError) -> ApiError:
    return RateLimitExceededError(
        str(error),
        kind="tokens" if error.kind is LimitKind.TOKENS else "requests",
        cause=CAUSES[error.kind],
        retry_after_s=error.retry_after_s,
    )


async def permit(
    gateway: Gateway, call: Call, entry: CatalogueEntry, base: CatalogueEntry, request: Request
) -> None:
    """``base``: the entry that is loaded, an adapter's base. Raises ``ApiError``."""
    principal = call.who
    if not principal.may_use(entry):
        raise ModelNotAllowedError(entry.name)
    # Bounds read the whole prompt, so they are made only where a limit counts its tokens.
    is_counted = principal.tokens_per_minute is not None
    bounds = await _bounds_now(gateway.liveness, base, request) if is_counted else None
    await gateway.limits.acquire(call, bounds, base.name)
    if base.upstream_model is not None or not (call.is_billed and principal.budgets):
        return
    if not ready_replicas(await gateway.liveness.placing_snapshot(), base.name):
        # Loading a model is no use with a spent budget. The reservation grows once its place is
        # known, and is released with the call where it finds none.
        await gateway.accounting.reserve(call, fewest_tokens(request))


async def _bounds_now(liveness: Liveness, base: CatalogueEntry, request: Request) -> TokenBounds:
    ready = ready_replicas(await liveness.placing_snapshot(), base.name)
    contexts = [replica.context_tokens for replica in ready]
    outputs = [replica.max_output_tokens for replica in ready]
    return token_bounds(
        request,
        context_tokens=_most(contexts, base.max_context_tokens),
        max_output_tokens=_most(outputs, base.max_output_tokens),
        catalogue_context_tokens=base.max_context_tokens,
    )


def ready_replicas(snapshot: FleetSnapshot, model: str) -> list[ReplicaView]:
    replicas = snapshot.replicas_of(model)
    return [replica for replica in replicas if replica.status is ReplicaStatus.READY]


def _most(limits: Sequence[int | None], otherwise: int | None) -> int | None:
    known = [limit for limit in limits if limit is not None]
    return max(known) if known and len(known) == len(limits) else otherwise


def check_task(entry: CatalogueEntry, task: Task) -> None:
    """Raises ``InvalidRequestError``."""
    if entry.task == task:
        return
    where = paths_of(entry.task) or "the endpoints of text"
    raise InvalidRequestError(
        f"{entry.name} is a model of {entry.task}, and this endpoint needs one of {task}. It "
        f"answers at {where}.",
        param="model",
    )


async def check_sees(liveness: Liveness, entry: CatalogueEntry, files: Sequence[ImageFile]) -> None:
    """Raises ``VisionUnsupportedError`` where ready replicas all lack vision."""
    ready = ready_replicas(await liveness.placing_snapshot(), entry.name)
    if ready and not any("vision" in replica.capabilities for replica in ready):
        raise VisionUnsupportedError(files[0].path)


def with_sampling_defaults(request: Request, defaults: Mapping[str, float]) -> Request:
    """The neuron fills fields that are still unset from the model's own files."""
    if not isinstance(request, GenerationRequest):
        return request
    options = request.sampling
    missing = {name: value for name, value in defaults.items() if getattr(options, name) is None}
    if not missing:
        return request
    return replace(request, sampling=replace(options, **missing))


def without_cache_marks(request: Request) -> Request:
    if not isinstance(request, GenerationRequest) or not request.cache_marks:
        return request
    return replace(request, cache_marks=[])


def with_defaults_at(request: Request, entry: CatalogueEntry, upstream: UpstreamEntry) -> Request:
    defaults = entry.sampling_defaults
    left_out = untranslated_defaults(upstream.dialect, defaults)
    kept = {name: value for name, value in defaults.items() if name not in left_out}
    return with_sampling_defaults(request, kept)


def permitted_upstream(
    pseudonym: str, call: Call, entry: CatalogueEntry, served: UpstreamModel
) -> UpstreamEntry:
    """Raises ``ApiError``."""
    upstream = entry.upstream_named(served.upstream)
    if upstream is None:
        raise upstream_failed(f"The upstream {served.upstream} has been removed.")
    check_network(entry, upstream, call.who)
    if has_passed(call.via, pseudonym):
        raise upstream_failed(
            f"The upstream {served.upstream} is not asked: this request came from here, and an "
            "upstream has sent it back."
        )
    return upstream


def check_network(entry: CatalogueEntry, upstream: UpstreamEntry, who: Principal) -> None:
    """Raises ``ForbiddenError``."""
    if not upstream.leaves_network:
        return
    whose = "" if who.may_leave_network else "this key"
    if not entry.may_leave_network:
        whose = entry.name
    if whose:
        raise ForbiddenError(
            "network_not_allowed",
            f"Requests of {whose} may not leave this network, and those to the upstream "
            f"{upstream.name} do.",
            param="model",
        )
