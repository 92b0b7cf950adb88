"""Requests as the clients of our users send them, and what each of them reads in the answer.

The bodies under ``real_clients`` carry the fields and headers that each client sends unasked. Their
``source`` states whether they were recorded, and of which version, or written after the client's
documentation. In recorded ones the prose is ours. The clients themselves are run by
scripts/try-clients.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acp.bridge import Bridge, bridge_here, endpoint_table
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


def test_titles_and_counts(client: RealClient, hermes: ScriptedModel) -> None:
    hermes.answers("A title for", '{"title": "Hello"}')
    events = client.events("claude_code_title")
    assert json.loads(block_deltas(events, "text_delta", "text")) == {"title": "Hello"}
    assert hermes.received("A title for claude code")[-1].params.grammar is not None
    body = client.send("open_webui_title").json()
    assert body["choices"][0]["message"]["content"] == '{"title": "Hello"}'
    assert client.send("claude_code_count_tokens").json()["input_tokens"] > 10


def test_claude_code_calls_a_tool(client: RealClient, hermes: ScriptedModel) -> None:
    """It reads the tool's input from the deltas, and the cache's part from the usage."""
    call = call_of("Read", '{"file_path": "/project/README.md"}')
    thought = "<think>\nRead it.\n</think>\n\nLet me look.\n"
    hermes.answers("README of claude code", thought + call)
    events = client.events("claude_code_turn")
    assert events[0]["type"] == "message_start"
    assert events[0]["message"]["usage"]["input_tokens"] > 0
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert [e["content_block"]["type"] for e in starts] == ["thinking", "text", "tool_use"]
    assert starts[2]["content_block"]["name"] == "Read"
    assert starts[2]["content_block"]["input"] == {}
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


def test_opencode_continues_after_a_tool(client: RealClient, hermes: ScriptedModel) -> None:
    """It keeps the calls' ids and wants the usage in the last chunk."""
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
    system = prompt.partition("<|im_end|>")[0]
    assert "You work in a code base." in system
    assert "Working directory: /project" in system
    assert "README.md\nsrc/" in prompt


def test_codex_continues_after_a_command(client: RealClient, hermes: ScriptedModel) -> None:
    """It keeps nothing here: what the model thought comes back from it, encrypted. It offers each
    MCP server's tools as a namespace, and looks a call up by both names."""
    hermes.answers("The note of codex", "It says so.")
    assert response_text(client.events("codex_turn")) == "It says so."
    prompt = hermes.received("The note of codex")[-1].prompt
    assert prompt.index("Read it.") < prompt.index("Let me look.") < prompt.index("cat note.txt")
    assert "mcp__notes.read" in prompt
    hermes.answers("The note of codex", call_of("mcp__notes.read", "{}"))
    item = client.events("codex_turn")[-1]["response"]["output"][-1]
    wanted = {"type": "function_call", "namespace": "mcp__notes", "name": "read"}
    assert item | wanted == item


def test_litellm_by_the_other_dialect(client: RealClient, hermes: ScriptedModel) -> None:
    hermes.answers("litellm's other side", f"Let me see.\n{CLOCK_CALL}")
    body = client.send("litellm_anthropic").json()
    assert [block["type"] for block in body["content"]] == ["text", "tool_use"]
    assert body["stop_reason"] == "tool_use"
    assert {"input_tokens", "output_tokens"} <= set(body["usage"])


def test_ai_sdk_refers_to_stored_items(client: RealClient, hermes: ScriptedModel) -> None:
    """Its next request names items of the earlier answer by id, calls aside."""
    thought = "<think>\nAsk the clock.\n</think>\n\nOne moment.\n"
    hermes.answers("in an ai sdk response", thought + CLOCK_CALL)
    hermes.answers("noon in the sdk", "Noon.")
    events = client.events("ai_sdk_responses")
    assert events[0]["type"] == "response.created"
    assert {"id", "model", "created_at"} <= set(events[0]["response"])
    items = events[-1]["response"]["output"]
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call"]
    call = items[2]
    given = json.loads((REQUESTS_DIR / "ai_sdk_responses.json").read_text())["body"]["input"]
    sent = {name: call[name] for name in ("type", "id", "call_id", "name", "arguments")}
    result = {
        "type": "function_call_output",
        "call_id": call["call_id"],
        "output": "noon in the sdk",
    }
    references = [{"type": "item_reference", "id": item["id"]} for item in items[:2]]
    asked = [*given, *references, sent, result]
    assert response_text(client.events("ai_sdk_responses", input=asked)) == "Noon."
    prompt = hermes.received("noon in the sdk")[-1].prompt
    assert "One moment." in prompt
    assert "Ask the clock." in prompt


@pytest.fixture(params=["openai-chat", "openai-responses", "anthropic-messages"])
async def bridge(
    request: pytest.FixtureRequest, scripted_server: ScriptedServe, tmp_path: Path
) -> AsyncIterator[Bridge]:
    url = f"{scripted_server.url}/v1"
    table = endpoint_table(url, request.param, default_model="hermes")
    async with bridge_here(tmp_path, table) as made:
        yield made


async def test_a_task_of_the_editor_bridge(
    bridge: Bridge, hermes: ScriptedModel, request: pytest.FixtureRequest
) -> None:
    """helexa-acp with the SDK's client on one side: it thinks, reads, edits after asking, answers;
    the model sees each result."""
    mark = f"task-{request.node.name}"
    (bridge.project / "notes.txt").write_text(f"{mark}-read: buy milk\n")
    read = call_of("read_file", '{"path": "notes.txt"}')
    changed = {"path": "notes.txt", "old_text": "milk", "new_text": "bread"}
    edit = call_of("edit_file", json.dumps(changed))
    hermes.answers(f"{mark}-begin", f"<think>A file.</think>I look.\n{read}")
    hermes.answers(f"{mark}-read", edit)
    hermes.answers(f"edited {bridge.project}", "It says bread now.")
    bridge.editor.permissions.append("allow_once")
    await bridge.open()
    answer = await bridge.ask(f"{mark}-begin")
    assert answer.stop_reason == "end_turn"
    assert (bridge.project / "notes.txt").read_text() == f"{mark}-read: buy bread\n"
    shown_text = bridge.editor.texts().replace("\n", "")
    assert shown_text == "I look.It says bread now."
    assert bridge.editor.texts("agent_thought_chunk").strip() == "A file."
    assert list(bridge.editor.statuses().values()) == ["completed", "completed"]
    first, *_ = hermes.received(f"{mark}-begin")
    assert '"name": "read_file"' in first.prompt
    assert answer.usage is not None
    assert answer.usage.input_tokens > first.num_prompt_tokens
    (*_, context) = bridge.editor.updates_of("usage_update")
    assert context.size == 131072, "the server reports it once the model is loaded"
