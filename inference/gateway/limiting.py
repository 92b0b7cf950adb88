"""The gateway's way to the rate limits: charged before anything is loaded for a request, corrected
when it has ended. What they refuse becomes what a client is told."""

from __future__ import annotations

from inference.gateway.call import Call, RequestOutcome
from inference.gateway.dispatch import redis_unavailable
from inference.gateway.token_bounds import prompt_estimate
from inference.protocol.generation import Request
from inference.wire import anthropic_errors
from inference.wire.dialect import ErrorDialect
from inference.wire.errors import RateLimitExceededError
from metering.errors import LimitsUnavailableError, RateLimitedError
from metering.limit_headers import anthropic_headers, openai_headers
from metering.limit_state import NO_LIMITS, LimitKind, LimitState
from metering.rate_limiter import RateLimiter


class Limiting:
    """Belongs to one event loop."""

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter

    async def acquire(self, call: Call, request: Request) -> None:
        """Charges an estimate of the prompt: how long an answer becomes is known at its end. Raises
        ``ApiError``."""
        principal = call.who
        tokens = prompt_estimate(request) if _counts_tokens(call) else 0
        try:
            state = await self._limiter.acquire(principal, call.request_id, tokens)
        except RateLimitedError as error:
            call.limit_state = error.state or NO_LIMITS
            raise RateLimitExceededError(
                str(error),
                kind="tokens" if error.kind is LimitKind.TOKENS else "requests",
                retry_after_s=error.retry_after_s,
            ) from error
        except LimitsUnavailableError as error:
            raise redis_unavailable() from error
        call.limit_state = state

    def settle(self, outcome: RequestOutcome) -> None:
        """Without effect on a request that holds nothing."""
        usage = outcome.usage
        self._limiter.correct(outcome.request_id, usage.prompt_tokens + usage.completion_tokens)
        self._limiter.release(outcome.request_id)


def limit_headers(state: LimitState, errors: ErrorDialect) -> list[tuple[bytes, bytes]]:
    """The headers in which the clients of a dialect look for their limits."""
    if state is NO_LIMITS:
        return []
    return anthropic_headers(state) if errors is anthropic_errors else openai_headers(state)


def _counts_tokens(call: Call) -> bool:
    """Estimating reads the whole prompt, which is for nothing where nobody counts tokens."""
    principal = call.who
    return (
        principal.key_limits.tokens_per_minute is not None
        or principal.account_limits.tokens_per_minute is not None
    )
