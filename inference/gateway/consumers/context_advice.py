"""Advice for clients that hit the context limit, by their name in ``User-Agent``.

Sent as the ``X-Helexa-Advice`` header of the refusal, for readers of logs. Nothing else depends on
which client it is. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from inference.wire.errors import ApiError

HEADER = b"x-helexa-advice"
WHERE = "The numbers to set are in limit of GET /v1/models."


@dataclass(frozen=True, slots=True)
class Client:
    name: str
    agent: re.Pattern[str]
    advice: str


def _client(name: str, agent: str, advice: str) -> Client:
    return Client(name, re.compile(agent, re.IGNORECASE), advice)


CLIENTS = (
    _client(
        "Claude Code",
        r"\bclaude-(?:cli|code)/",
        "Claude Code: set CLAUDE_CODE_MAX_CONTEXT_TOKENS to the model's context and "
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS to what of it answers may take, then /compact.",
    ),
    _client(
        "opencode",
        r"\bopencode/",
        "opencode: set provider.<id>.models.<model>.limit.context and .output in opencode.json.",
    ),
    _client(
        "Zed",
        r"\bzed/",
        "Zed: set max_tokens (the context) and max_output_tokens of the model in "
        "language_models.<provider>.available_models of settings.json.",
    ),
    _client(
        "Open WebUI",
        r"\bopen[ -]?webui\b",
        "Open WebUI: it sends the whole chat; add a filter function that clips the context, or "
        "start a new chat.",
    ),
    _client(
        "Agent Zero",
        r"\bagent[ _-]?zero\b",
        "Agent Zero: set the chat model's context length in its settings, and the share of it that "
        "the chat history may take.",
    ),
    _client(
        "LiteLLM",
        r"\blitellm\b",
        "LiteLLM: set model_info.max_input_tokens of the model and "
        "router_settings.enable_pre_call_checks: true.",
    ),
    _client(
        "Vercel AI SDK",
        r"\bai-sdk/|\bai/\d",
        "AI SDK: it has no setting for the context; shorten the messages in prepareStep, or with "
        "pruneMessages before the call.",
    ),
)
"""The first that fits counts: clients built on an SDK name it after themselves."""


def advice_for(user_agent: str, error: ApiError) -> str | None:
    if error.code != "context_length_exceeded":
        return None
    for client in CLIENTS:
        if client.agent.search(user_agent):
            return f"{client.advice} {WHERE}"
    return None


def advice_headers(user_agent: str, error: ApiError) -> list[tuple[bytes, bytes]]:
    advice = advice_for(user_agent, error)
    return [] if advice is None else [(HEADER, advice.encode("ascii"))]
