"""Admits a request: by what one gateway takes on at once (``Bounds``), and by the rate limits.

Rate limits are charged before anything is loaded for a request, and corrected when it has ended.
Each refusal names its bound, and becomes an error for the client.
"""

from __future__ import annotations

from dataclasses import replace

from inference.gateway.request.outcome import Call, RequestOutcome
from inference.gateway.request.token_bounds import PromptRatios, TokenBounds
from inference.protocol.refusals import Cause
from inference.redis_link import redis_unavailable
from inference.wire.anthropic import errors as anthropic_errors
from inference.wire.dialect import ErrorDialect
from inference.wire.errors import ApiError, RateLimitExceededError, ServiceUnavailableError
from metering.errors import LimitsUnavailableError, RateLimitedError
from metering.limits.headers import anthropic_headers, openai_headers
from metering.limits.rate_limiter import RateLimiter
from metering.limits.state import NO_LIMITS, LimitKind, LimitState

RETRY_AFTER_S = 1.0


class Bounds:
    def __init__(self, *, max_open_requests: int, max_open_body_bytes: int) -> None:
        self.num_open_requests = 0
        self.num_body_bytes = 0
        self._max_open_requests = max_open_requests
        self._max_open_body_bytes = max_open_body_bytes

    def open_request(self) -> None:
        if self.num_open_requests >= self._max_open_requests:
            raise ServiceUnavailableError(
                "queue_full",
                f"This gateway has {self._max_open_requests:,} requests open, which is as many as "
                "it takes (HELEXA_MAX_OPEN_REQUESTS).",
                retry_after_s=RETRY_AFTER_S,
            )
        self.num_open_requests += 1

    def take_body(self, num_bytes: int) -> None:
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
"""A request that names no length is admitted when so much of the minute is left for its answer, or
a quarter of a limit that is smaller."""


class Limiting:
    def __init__(self, limiter: RateLimiter) -> None:
        self.ratios = PromptRatios()
        self._limiter = limiter

    async def acquire(self, call: Call, bounds: TokenBounds | None, model: str) -> None:
        """Charges the most that the request may use. ``bounds`` is ``None`` where no limit counts
        tokens; ``model`` is whose tokenizer counts. An answer of no named length is charged, and
        capped, at half of the rest of the minute, so that others run beside it. Raises
        ``ApiError``."""
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
