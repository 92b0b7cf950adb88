"""Parts of the response object: the echo of the request, the outcome, the usage. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from inference.protocol.events import Accepted, Usage
from inference.wire.errors import ApiError
from inference.wire.openai.responses.tools import Member


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSettings:
    """``echo`` are the fields of the response object that echo the request; ``members`` the
    functions of namespaces, by the names in the prompt."""

    echo: dict[str, Any]
    members: Mapping[str, Member]
    summarises: bool
    """Reasoning is shown where a summary of it would be."""
    carries_reasoning: bool
    background: bool
    pads_deltas: bool = False


def response_id(request_id: str) -> str:
    return f"resp_{request_id}"


def sampling_echo(event: Accepted) -> dict[str, float]:
    """What the model's own defaults have made of it."""
    return {} if event.sampling is None else msgspec.structs.asdict(event.sampling)


def lost_turns(event: Accepted) -> dict[str, Any]:
    """An extension: what ``truncation`` auto has left out."""
    if not event.num_lost_turns:
        return {}
    return {"truncated": {"dropped_turns": event.num_lost_turns}}


def usage_object(usage: Usage) -> dict[str, Any]:
    """Nothing is charged for writing to the prefix cache, so nothing is counted there."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def response_error(error: ApiError) -> dict[str, Any]:
    """The few codes that a failed response may have; the message describes the error."""
    code = "server_error"
    if error.status == 429:
        code = "rate_limit_exceeded"
    elif error.status < 500:
        code = "invalid_prompt"
    return {"code": code, "message": error.message}
