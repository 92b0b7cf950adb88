"""One line of the neuron's log for each request that has ended, by the id that its gateway logs."""

from __future__ import annotations

import logging

from inference.logs.phases import phases
from inference.neuron.requests.live_request import LiveRequest
from inference.protocol.engine import SequenceTiming
from inference.protocol.events import Cancelled, Embedded, Event, Failed, Finished, Usage

logger = logging.getLogger(__name__)

NOTHING = Usage(prompt_tokens=0, completion_tokens=0)


def log_end(live: LiveRequest, end: Event, *, now_unix_s: float) -> None:
    """``end`` is its terminal event. Contains nothing of the prompt or the answer."""
    usage: Usage | None = None
    timing: SequenceTiming | None = None
    outcome = "finished"
    match end:
        case Failed(failure=failure):
            outcome, usage = failure.code, end.usage
        case Cancelled():
            outcome, usage = "cancelled", end.usage
        case Finished():
            usage, timing = end.usage, end.timing
        case Embedded():
            usage = end.usage
    usage = usage or NOTHING
    first_token_s = (live.first_token_unix_s or now_unix_s) - live.started_unix_s
    logger.info(
        "%s model=%s %s prompt=%d cached=%d completion=%d first_token_ms=%.0f ms=%.0f%s",
        live.request_id,
        live.submit.model,
        outcome,
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.completion_tokens,
        1000 * first_token_s,
        1000 * (now_unix_s - live.started_unix_s),
        "" if timing is None else phases(timing, usage.completion_tokens),
    )
