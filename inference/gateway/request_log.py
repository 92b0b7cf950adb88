"""The one line in the log for each request: its model, how it ended, what it used and took."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from inference.protocol.events import Usage
from inference.wire.errors import ApiError

logger = logging.getLogger("helexa.requests")


@dataclass(slots=True)
class LoggedRequest:
    """Filled in as it becomes known."""

    model: str = "-"
    usage: Usage | None = None
    is_told_elsewhere: bool = False
    """It goes on, and is told of at its own end."""


@contextmanager
def logged(request_id: str) -> Iterator[LoggedRequest]:
    """The block answers the request; it is logged when the block ends, however that is."""
    request, started_s, outcome = LoggedRequest(), time.perf_counter(), "cancelled"
    try:
        yield request
        outcome = "finished"
    except ApiError as error:
        outcome = error.code
        raise
    finally:
        if not request.is_told_elsewhere:
            seconds = time.perf_counter() - started_s
            log_request(request_id, request.model, outcome, request.usage, seconds)


def log_request(
    request_id: str, model: str, outcome: str, usage: Usage | None, seconds: float
) -> None:
    """``outcome`` is ``finished``, ``cancelled`` or why not."""
    usage = usage or Usage(prompt_tokens=0, completion_tokens=0)
    logger.info(
        "%s model=%s %s prompt=%d cached=%d completion=%d ms=%.0f",
        request_id,
        model,
        outcome,
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.completion_tokens,
        seconds * 1000,
    )
