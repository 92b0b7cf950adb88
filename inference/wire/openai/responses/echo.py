"""The request's fields that a response echoes, and those that its encoder needs. Pure."""

from __future__ import annotations

from typing import Any

from inference.wire.openai.responses.fields import ENCRYPTED_REASONING, PLAIN_TEXT
from inference.wire.openai.responses.object import AnswerSettings
from inference.wire.openai.responses.reasoning import Reasoning
from inference.wire.openai.responses.tools import CHOOSE_FREELY, NO_TOOLS, GivenTools

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
"""Fields of the response object that echo the request, ``null`` where it has none."""

NEUTRAL_SAMPLING = {
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Echoed for absent fields until the model's own defaults are known."""


def answer_settings(read: dict[str, Any], *, store: bool, background: bool) -> AnswerSettings:
    """``read``: what the checks of a request's fields made of a body."""
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
