"""Which kind of client sent a request, as one of a fixed set of words. Pure.

For the ledger, logs and metrics, where the text of a header must never go.
"""

from __future__ import annotations

import re

OTHER = "other"
MAX_REMEMBERED = 256
MAX_AGENT_CHARS = 512

_FAMILIES = (
    ("claude-code", r"\bclaude-(?:cli|code)/"),
    ("codex", r"\bcodex"),
    ("opencode", r"\bopencode/"),
    ("zed", r"\bzed/"),
    ("qwen-code", r"\bqwencode/|\bqwen-code"),
    ("open-webui", r"\bopen[ -]?webui\b"),
    ("litellm", r"\blitellm\b"),
    ("ai-sdk", r"\bai-sdk/|\bai/\d"),
    ("langchain", r"\blangchain"),
    ("llama-index", r"\bllama[-_]index"),
    ("helexa-acp", r"\bhelexa-acp"),
    ("openai-python", r"\b(?:async)?openai/python"),
    ("openai-js", r"\b(?:async)?openai/js"),
    ("anthropic-python", r"\b(?:async)?anthropic/python"),
    ("anthropic-js", r"\b(?:async)?anthropic/js"),
    ("ollama-python", r"\bollama-python/"),
    ("ollama-js", r"\bollama-js/"),
    ("curl", r"\bcurl/"),
    ("python", r"\bpython|\bhttpx\b|\baiohttp\b"),
    ("node", r"\bnode\b|\bundici\b"),
    ("browser", r"\bmozilla/"),
)
_PATTERNS = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _FAMILIES)
_remembered: dict[str, str] = {}


def client_family(user_agent: str) -> str:
    """``""`` for a client without a user agent."""
    if not user_agent:
        return ""
    agent = user_agent[:MAX_AGENT_CHARS]
    family = _remembered.get(agent)
    if family is None:
        family = next((name for name, pattern in _PATTERNS if pattern.search(agent)), OTHER)
        if len(_remembered) >= MAX_REMEMBERED:
            _remembered.clear()
        _remembered[agent] = family
    return family
