"""This server's own headers of answers, beside those of the dialects. Pure.

``X-Helexa-Advice``: what to set in a client that hit the context limit, by its family
(``metrics.requests``), for readers of logs. ``X-Helexa-Ignored``: the fields that were ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from inference.wire.errors import ApiError

HEADER = b"x-helexa-advice"
WHERE = "The numbers to set are in limit of GET /v1/models."
ADVICE = {
    "claude-code": "Claude Code: set CLAUDE_CODE_MAX_CONTEXT_TOKENS to the model's context and "
    "CLAUDE_CODE_MAX_OUTPUT_TOKENS to what of it answers may take, then /compact.",
    "opencode": "opencode: set provider.<id>.models.<model>.limit.context and .output in "
    "opencode.json.",
    "zed": "Zed: set max_tokens (the context) and max_output_tokens of the model in "
    "language_models.<provider>.available_models of settings.json.",
    "open-webui": "Open WebUI: it sends the whole chat; add a filter function that clips the "
    "context, or start a new chat.",
    "agent-zero": "Agent Zero: set the chat model's context length in its settings, and the share "
    "of it that the chat history may take.",
    "litellm": "LiteLLM: set model_info.max_input_tokens of the model and "
    "router_settings.enable_pre_call_checks: true.",
    "ai-sdk": "AI SDK: it has no setting for the context; shorten the messages in prepareStep, or "
    "with pruneMessages before the call.",
}


def advice_headers(client: str, error: ApiError) -> list[tuple[bytes, bytes]]:
    if error.code != "context_length_exceeded" or client not in ADVICE:
        return []
    return [(HEADER, f"{ADVICE[client]} {WHERE}".encode("ascii"))]


IGNORED = b"x-helexa-ignored"
MAX_NAMED = 32
MAX_NAME_CHARS = 128


def ignored_headers(paths: Sequence[str]) -> list[tuple[bytes, bytes]]:
    """Names are the client's own text: characters that a header cannot carry are percent-encoded,
    and of many the last is a count of the others."""
    if not paths:
        return []
    named = [quote(one[:MAX_NAME_CHARS], safe="[]", errors="replace") for one in paths[:MAX_NAMED]]
    if len(paths) > MAX_NAMED:
        named.append(f"and {len(paths) - MAX_NAMED} more")
    return [(IGNORED, ", ".join(named).encode("ascii"))]
