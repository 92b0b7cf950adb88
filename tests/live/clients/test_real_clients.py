"""Requests as the clients of our users send them, and what each of them reads in the answer.

The bodies under ``real_clients`` carry the fields and headers that each client sends unasked. Their
``source`` states whether they were recorded, and of which version, or written after the client's
documentation. In recorded ones the prose is ours. The clients themselves are run by
scripts/try-clients.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live.clients.agents import call_of
from tests.live.scripted.model import CLOCK_CALL, ScriptedModel, ScriptedServe
from tests.live.serving import WAIT_TIMEOUT_S, Events, chat_text, events_of

REQUESTS_DIR = Path(__file__).parent / "real_clients"


class RealClient:
    def __init__(self, url: str) -> None:
        self._url = url

    def send(self, name: str, **changes: Any) -> httpx.Response:
        request = json.loads((REQUESTS_DIR / f"{name}.json").read_text())
        response = httpx.post(
            self._url + request["path"],
            headers=request["headers"] | {"content-type": "application/json"},
            content=json.dumps(request["body"] | changes),
            timeout=WAIT_TIMEOUT_S,
        )
        assert response.status_code == 200, response.text
        return response

    def events(self, name: str, **changes: Any) -> Events:
        response = self.send(name, **changes)
        assert response.headers["content-type"].startswith("text/event-stream")
        return events_of(response.text)


@pytest.fixture
def client(scripted_server: ScriptedServe) -> RealClient:
    return RealClient(scripted_server.url)


def block_deltas(events: Events, kind: str, field: str) -> str:
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    return "".join(delta[field] for delta in deltas if delta["type"] == kind)


def response_text(events: Events) -> str:
    assert events[-1]["type"] == "response.completed"
    return str(events[-1]["response"]["output"][-1]["content"][0]["text"])


CHATS = {
    "qwen_code_turn": ("The note of qwen", "It says so."),
    "zed_turn": ("What is in it, zed?", "Nothing yet."),
    "open_webui_turn": ("Repeat it, open webui", "Hello!###"),
    "litellm_tools": ("noon in litellm", "It is noon."),
    "ai_sdk_chat": ("A dish for the ai sdk", '{"dish": "soup", "steps": ["boil"]}'),
}
"""What each asks, and what is answered."""


@pytest.mark.parametrize("name", CHATS)
def test_chats_are_read(client: RealClient, hermes: ScriptedModel, name: str) -> None:
    """Zed fails on a chunk without ``choices`` and on a usage with a count missing; Open WebUI has
    a stop string. Results of tools are texts or lists of parts."""
    asked, answer = CHATS[name]
    hermes.answers(asked, answer)
    chunks = client.events(name)
    assert chat_text(chunks) == answer.removesuffix("###")
    for chunk in chunks:
        assert all({"index", "delta"} <= set(choice) for choice in chunk["choices"])
        if chunk.get("usage") is not None:
            assert {"prompt_tokens", "completion_tokens", "total_tokens"} <= set(chunk["usage"])
    assert chunks[-1]["usage"] is not None
    received = hermes.received(asked)[-1]
    if name == "zed_turn":
        assert received.prompt.index("Open the file, ") < received.prompt.index("fn main() {}")
    if name == "open_webui_turn":
        params = received.params
        assert (params.top_k, params.seed, params.max_tokens) == (40, 42, 512)


def test_titles_counts_and_the_other_dialect(client: RealClient, hermes: ScriptedModel) -> None:
    hermes.answers("A title for", '{"title": "Hello"}')
    events = client.events("claude_code_title")
    assert json.loads(block_deltas(events, "text_delta", "text")) == {"title": "Hello"}
    assert hermes.received("A title for claude code")[-1].params.grammar is not None
    body = client.send("open_webui_title").json()
    assert body["choices"][0]["message"]["content"] == '{"title": "Hello"}'
    assert client.send("claude_code_count_tokens").json()["input_tokens"] > 10
    hermes.answers("litellm's other side", f"Let me see.\n{CLOCK_CALL}")
    body = client.send("litellm_anthropic").json()
    assert [block["type"] for block in body["content"]] == ["text", "tool_use"]
    assert body["stop_reason"] == "tool_use"


def test_claude_code_calls_a_tool(client: RealClient, hermes: ScriptedModel) -> None:
    """It reads the tool's input from the deltas, and the cache's part from the usage."""
    call = call_of("Read", '{"file_path": "/project/README.md"}')
    thought = "<think>\nRead it.\n</think>\n\nLet me look.\n"
    hermes.answers("README of claude code", thought + call)
    events = client.events("claude_code_turn")
    assert events[0]["message"]["usage"]["input_tokens"] > 0
    starts = [one["content_block"] for one in events if one["type"] == "content_block_start"]
    assert [one["type"] for one in starts] == ["thinking", "text", "tool_use"]
    assert (starts[2]["name"], starts[2]["input"]) == ("Read", {})
    given = block_deltas(events, "input_json_delta", "partial_json")
    assert json.loads(given) == {"file_path": "/project/README.md"}
    assert block_deltas(events, "signature_delta", "signature")
    ended = next(event for event in events if event["type"] == "message_delta")
    assert ended["delta"]["stop_reason"] == "tool_use"
    assert {"input_tokens", "output_tokens", "cache_read_input_tokens"} <= set(ended["usage"])
    prompt = hermes.received("README of claude code")[-1].prompt
    assert "You help in a terminal." in prompt
    assert "Agents that may be started: none." in prompt, "it came after the user's turn"
    assert "cc_version" not in prompt, "it changes with the client and would spoil the cache"


def test_opencode_and_codex_continue_after_a_tool(
    client: RealClient, hermes: ScriptedModel
) -> None:
    """opencode keeps the calls' ids and wants the usage in the last chunk. Codex keeps nothing
    here: what the model thought comes back from it, encrypted. It offers each MCP server's tools as
    a namespace, and looks a call up by both names."""
    call = call_of("bash", '{"command": "cat README.md", "description": "Show it"}')
    hermes.answers("List the files, opencode", f"Two.\n{call}")
    chunks = client.events("opencode_turn")
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    functions = [one["function"] for delta in deltas for one in delta.get("tool_calls") or []]
    assert functions[0]["name"] == "bash"
    arguments = "".join(function.get("arguments") or "" for function in functions)
    assert json.loads(arguments) == {"command": "cat README.md", "description": "Show it"}
    assert chat_text(chunks).strip() == "Two."
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    usage = chunks[-1]["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    prompt = hermes.received("List the files, opencode")[-1].prompt
    assert "Working directory: /project" in prompt.partition("<|im_end|>")[0]
    assert "README.md\nsrc/" in prompt

    hermes.answers("The note of codex", "It says so.")
    assert response_text(client.events("codex_turn")) == "It says so."
    prompt = hermes.received("The note of codex")[-1].prompt
    assert prompt.index("Read it.") < prompt.index("Let me look.") < prompt.index("cat note.txt")
    assert "mcp__notes.read" in prompt
    hermes.answers("The note of codex", call_of("mcp__notes.read", "{}"))
    item = client.events("codex_turn")[-1]["response"]["output"][-1]
    wanted = {"type": "function_call", "namespace": "mcp__notes", "name": "read"}
    assert item | wanted == item


def test_ai_sdk_refers_to_stored_items(client: RealClient, hermes: ScriptedModel) -> None:
    """Its next request names items of the earlier answer by id, calls aside."""
    thought = "<think>\nAsk the clock.\n</think>\n\nOne moment.\n"
    hermes.answers("in an ai sdk response", thought + CLOCK_CALL)
    hermes.answers("noon in the sdk", "Noon.")
    items = client.events("ai_sdk_responses")[-1]["response"]["output"]
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call"]
    call = items[2]
    given = json.loads((REQUESTS_DIR / "ai_sdk_responses.json").read_text())["body"]["input"]
    sent = {name: call[name] for name in ("type", "id", "call_id", "name", "arguments")}
    result = {"type": "function_call_output", "call_id": call["call_id"]}
    result["output"] = "noon in the sdk"
    references = [{"type": "item_reference", "id": item["id"]} for item in items[:2]]
    asked = [*given, *references, sent, result]
    assert response_text(client.events("ai_sdk_responses", input=asked)) == "Noon."
    prompt = hermes.received("noon in the sdk")[-1].prompt
    assert "One moment." in prompt
    assert "Ask the clock." in prompt
