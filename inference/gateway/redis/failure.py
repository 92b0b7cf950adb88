"""How the gateway refuses a request while Redis does not answer, and how often it tries again."""

from __future__ import annotations

from inference.backoff import Backoff
from inference.wire.errors import ServiceUnavailableError

REDIS_BACKOFF = Backoff(first_s=0.1, max_s=1.0)


def redis_unavailable() -> ServiceUnavailableError:
    return ServiceUnavailableError("redis_unavailable", "Redis does not answer; try again shortly.")
