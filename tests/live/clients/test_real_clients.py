"""Requests as the clients of our users send them, and what each of them reads in the answer.

The bodies under ``real_clients`` carry the fields and headers that each client sends unasked. Their
``source`` states whether they were recorded, and of which version, or written after the client's
documentation. In recorded ones the prose is ours. The clients themselves are run by
scripts/try-clients.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live.scripted.model import ScriptedModel
from tests.live.scripted.server import ScriptedServe
from tests.live.sdk.asking import CLOCK_CALL
from tests.live.serving import WAIT_TIMEOUT_S, Events, chat_text, events_of

REQUESTS_DIR = Path(__file__).parent / "real_clients"
Send = Callable[..., httpx.Response]


@pytest.fixture
def send(scripted_server: ScriptedServe) -> Send:
    """Sends a client's request as it stands in its file, with ``changes`` in its body."""

    def send(name: str, **changes: Any) -> httpx.Response:
        request = json.loads((REQUESTS_DIR / f"{name}.json").read_text())
        response = httpx.post(
            scripted_server.url + request["path"],
            headers=request["headers"] | {"content-type": "application/json"},
            content=json.dumps(request["body"] | changes),
            timeout=WAIT_TIMEOUT_S,
        )
        assert response.status_code == 200, response.text
        return response

    return send


def call_of(name: str, **arguments: str) -> str:
    written = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{written}\n</tool_call>"


def block_deltas(events: Events, kind: str, field: str) -> str:
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    return "".join(delta[field] for delta in deltas if delta["type"] == kind)


def final_items(events: Events) -> list[dict[str, Any]]:
    assert events[-1]["type"] == "response.completed"
    return list(events[-1]["response"]["output"])


CHATS = {
    "qwen_code_turn": ("The note of qwen", "It says so."),
    "zed_turn": ("What is in it, zed?", "Nothing yet."),
    "open_webui_turn": ("Repeat it, open webui", "Hello!###"),
    "ai_sdk_chat": ("A dish for the ai sdk", '{"dish": "soup", "steps": ["boil"]}'),
}
"""What each asks, and what is answered."""


@pytest.mark.parametrize("name", CHATS)
def test_chats_are_read(send: Send, hermes: ScriptedModel, name: str) -> None:
    """Zed fails on a chunk without ``choices`` and on a usage with a count missing; Open WebUI has
    a stop string. Results of tools are texts or lists of parts."""
    asked, answer = CHATS[name]
    hermes.answers(asked, answer)
    chunks = events_of(send(name).text)
    assert chat_text(chunks) == answer.removesuffix("###")
    for chunk in chunks:
        assert all({"index", "delta"} <= set(choice) for choice in chunk["choices"])
        if chunk.get("usage") is not None:
            assert {"prompt_tokens", "completion_tokens", "total_tokens"} <= set(chunk["usage"])
    assert chunks[-1]["usage"] is not None
    if name == "zed_turn":
        prompt = hermes.received(asked)[-1].prompt
        assert prompt.index("Open the file, ") < prompt.index("fn main() {}")


def test_titles_and_counts(send: Send, hermes: ScriptedModel) -> None:
    hermes.answers("A title for", '{"title": "Hello"}')
    events = events_of(send("claude_code_title").text)
    assert json.loads(block_deltas(events, "text_delta", "text")) == {"title": "Hello"}
    assert hermes.received("A title for claude code")[-1].params.grammar is not None
    body = send("open_webui_title").json()
    assert body["choices"][0]["message"]["content"] == '{"title": "Hello"}'
    assert send("claude_code_count_tokens").json()["input_tokens"] > 10


def test_claude_code_calls_a_tool(send: Send, hermes: ScriptedModel) -> None:
    """It reads the tool's input from the deltas, and the cache's part from the usage."""
    call = call_of("Read", file_path="/project/README.md")
    hermes.answers("README of claude code", f"<think>\nRead.\n</think>\n\nI look.\n{call}")
    events = events_of(send("claude_code_turn").text)
    assert events[0]["message"]["usage"]["input_tokens"] > 0
    starts = [e["content_block"] for e in events if e["type"] == "content_block_start"]
    assert [start["type"] for start in starts] == ["thinking", "text", "tool_use"]
    assert (starts[2]["name"], starts[2]["input"]) == ("Read", {})
    given = block_deltas(events, "input_json_delta", "partial_json")
    assert json.loads(given) == {"file_path": "/project/README.md"}
    assert block_deltas(events, "signature_delta", "signature")
    (ended,) = (event for event in events if event["type"] == "message_delta")
    assert ended["delta"]["stop_reason"] == "tool_use"
    assert {"input_tokens", "output_tokens", "cache_read_input_tokens"} <= set(ended["usage"])
    prompt = hermes.received("README of claude code")[-1].prompt
    assert "You help in a terminal." in prompt
    assert "Agents that may be started: none." in prompt, "it came after the user's turn"
    assert "cc_version" not in prompt, "it changes with the client and would spoil the cache"


def test_opencode_continues_after_a_tool(send: Send, hermes: ScriptedModel) -> None:
    """It wants the usage in the last chunk."""
    call = call_of("bash", command="cat README.md", description="Show it")
    hermes.answers("List the files, opencode", f"Two.\n{call}")
    chunks = events_of(send("opencode_turn").text)
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    functions = [one["function"] for delta in deltas for one in delta.get("tool_calls") or []]
    assert functions[0]["name"] == "bash"
    arguments = "".join(function.get("arguments") or "" for function in functions)
    assert json.loads(arguments) == {"command": "cat README.md", "description": "Show it"}
    assert chat_text(chunks).strip() == "Two."
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["usage"]["total_tokens"] > 0
    prompt = hermes.received("List the files, opencode")[-1].prompt
    system = prompt.partition("<|im_end|>")[0]
    assert "You work in a code base." in system and "Working directory: /project" in system
    assert "README.md\nsrc/" in prompt


def test_codex_continues_after_a_command(send: Send, hermes: ScriptedModel) -> None:
    """It keeps nothing here: what the model thought comes back from it, encrypted. It offers each
    MCP server's tools as a namespace, and looks a call up by both names."""
    hermes.answers("The note of codex", call_of("mcp__notes.read"))
    (*_, item) = final_items(events_of(send("codex_turn").text))
    wanted = {"type": "function_call", "namespace": "mcp__notes", "name": "read"}
    assert item | wanted == item
    prompt = hermes.received("The note of codex")[-1].prompt
    assert prompt.index("Read it.") < prompt.index("Let me look.") < prompt.index("cat note.txt")
    assert "mcp__notes.read" in prompt


def test_ai_sdk_refers_to_stored_items(send: Send, hermes: ScriptedModel) -> None:
    """Its next request names items of the earlier answer by id, calls aside."""
    thought = "<think>\nAsk the clock.\n</think>\n\nOne moment.\n"
    hermes.answers("in an ai sdk response", thought + CLOCK_CALL)
    hermes.answers("noon in the sdk", "Noon.")
    *items, call = final_items(events_of(send("ai_sdk_responses").text))
    assert [item["type"] for item in (*items, call)] == ["reasoning", "message", "function_call"]
    given = json.loads((REQUESTS_DIR / "ai_sdk_responses.json").read_text())["body"]["input"]
    sent = {name: call[name] for name in ("type", "id", "call_id", "name", "arguments")}
    result = {"type": "function_call_output", "call_id": call["call_id"]}
    result["output"] = "noon in the sdk"
    references = [{"type": "item_reference", "id": item["id"]} for item in items]
    answered = send("ai_sdk_responses", input=[*given, *references, sent, result])
    (message,) = final_items(events_of(answered.text))
    assert message["content"][0]["text"] == "Noon."
    prompt = hermes.received("noon in the sdk")[-1].prompt
    assert "One moment." in prompt and "Ask the clock." in prompt
