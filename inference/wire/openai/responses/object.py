"""Parts of the response object: the echo of the request, the outcome, the usage. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from inference.protocol.events import Accepted, Usage
from inference.wire.errors import ApiError
from inference.wire.openai.responses.fields import ENCRYPTED_REASONING, PLAIN_TEXT, Reasoning
from inference.wire.openai.responses.tools import CHOOSE_FREELY, NO_TOOLS, GivenTools, Member


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSettings:
    """``echo`` are the fields of the response object that echo the request; ``members`` the
    functions of namespaces, by the names in the prompt."""

    echo: dict[str, Any]
    members: Mapping[str, Member]
    summarises: bool
    carries_reasoning: bool
    background: bool
    pads_deltas: bool = False


def response_id(request_id: str) -> str:
    return f"resp_{request_id}"


def sampling_echo(event: Accepted) -> dict[str, float]:
    return {} if event.sampling is None else msgspec.structs.asdict(event.sampling)


def lost_turns(event: Accepted) -> dict[str, Any]:
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


ECHOED = (
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "previous_response_id",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "user",
)

NEUTRAL_SAMPLING = {
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Echoed for absent fields until the model's own defaults are known."""


def answer_settings(read: dict[str, Any], *, store: bool, background: bool) -> AnswerSettings:
    wanted: Reasoning = read.get("reasoning", Reasoning())
    given: GivenTools = read.get("tools", NO_TOOLS)
    echo = {
        "model": read["model"],
        "background": background,
        "store": store,
        **{name: read.get(name) for name in ECHOED},
        **{name: read.get(name, neutral) for name, neutral in NEUTRAL_SAMPLING.items()},
        "metadata": read.get("metadata", {}),
        "parallel_tool_calls": read.get("parallel_tool_calls", True),
        "reasoning": {"effort": wanted.effort, "summary": wanted.summary},
        "service_tier": "default",
        "text": read.get("text", PLAIN_TEXT).as_object(),
        "tool_choice": read.get("tool_choice", CHOOSE_FREELY).as_object,
        "tools": given.as_objects,
        "top_logprobs": read.get("top_logprobs", 0),
        "truncation": read.get("truncation", "disabled"),
    }
    return AnswerSettings(
        echo=echo,
        members=given.members,
        summarises=wanted.summary is not None,
        carries_reasoning=ENCRYPTED_REASONING in read.get("include", ()),
        background=background,
        pads_deltas=read.get("stream_options", {}).get("include_obfuscation", False),
    )
