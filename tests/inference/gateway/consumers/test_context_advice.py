"""Each known client gets the name of its own setting, in one ASCII line."""

from __future__ import annotations

from inference.gateway.consumers.context_advice import CLIENTS, HEADER, advice_for, advice_headers
from inference.protocol.events import Failure
from inference.wire.errors import ModelNotFoundError, RequestFailedError
from tests.cases import each_case

FULL = RequestFailedError(Failure(code="context_length_exceeded", message="Too long."))


@each_case(
    ("agent", "name"),
    [
        ("claude-cli/2.1.76 (external, cli)", "Claude Code"),
        ("claude-code/2.2.0", "Claude Code"),
        ("opencode/1.18.0 ai-sdk/openai-compatible/3.0.41", "opencode"),
        ("Zed/0.210.1 (linux; x86_64)", "Zed"),
        ("Open WebUI (https://github.com/open-webui/open-webui)", "Open WebUI"),
        ("open-webui/0.6", "Open WebUI"),
        ("agent-zero/0.9.7", "Agent Zero"),
        ("Agent-Zero", "Agent Zero"),
        ("agent-zero/1.2 litellm/1.80.0", "Agent Zero"),
        ("litellm/1.80.0", "LiteLLM"),
        (
            "ai-sdk/openai-compatible/2.0.62 ai-sdk/provider-utils/4.0.40 runtime/node.js/24",
            "AI SDK",
        ),
        ("ai/6.0.1 ai-sdk/anthropic/3.0.1", "AI SDK"),
    ],
)
def test_known_clients(agent: str, name: str) -> None:
    advice = advice_for(agent, FULL)
    assert advice is not None and advice.startswith(f"{name}:")


@each_case(
    "agent",
    [
        "",
        "OpenAI/Python 3.52.0",
        "Anthropic/JS 0.94.0",
        "curl/8.11",
        "organized/1",
        "chai/4",
        "agents/0",
    ],
)
def test_unknown_clients(agent: str) -> None:
    assert advice_for(agent, FULL) is None
    assert advice_headers(agent, FULL) == []


def test_only_for_a_full_context() -> None:
    assert advice_for("claude-cli/2", ModelNotFoundError("m")) is None


def test_a_header_holds_every_advice() -> None:
    for client in CLIENTS:
        assert client.advice.isascii() and client.advice.isprintable()
    ((name, value),) = advice_headers("claude-cli/2", FULL)
    assert name == HEADER and value.startswith(b"Claude Code:")
