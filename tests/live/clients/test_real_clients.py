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

from tests.live.scripted.model import ScriptedModel
from tests.live.scripted.server import ScriptedServe
from tests.live.sdk.asking import CLOCK_CALL
from tests.live.serving import WAIT_TIMEOUT_S

REQUESTS_DIR = Path(__file__).parent / "real_clients"
Events = list[dict[str, Any]]


class RealClient:
    """Sends a client's request as it stands in its file, with ``changes`` in its body."""

    def __init__(self, url: str) -> None:
        self._url = url

    def send(self, name: str, **changes: Any) -> httpx.Response:
        request = json.loads((REQUESTS_DIR / f"{name}.json").read_text())
        return httpx.post(
            self._url + request["path"],
            headers=request["headers"] | {"content-type": "application/json"},
            content=json.dumps(request["body"] | changes),
            timeout=WAIT_TIMEOUT_S,
        )

    def body(self, name: str, **changes: Any) -> dict[str, Any]:
        response = self.send(name, **changes)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    def events(self, name: str, **changes: Any) -> Events:
        response = self.send(name, **changes)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.text.splitlines() if line.startswith("data: ")]
        datas = [line.removeprefix("data: ") for line in lines]
        return [json.loads(data) for data in datas if data != "[DONE]"]


@pytest.fixture
def client(scripted_server: ScriptedServe) -> RealClient:
    return RealClient(scripted_server.url)


def chat_text(chunks: Events) -> str:
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def block_deltas(events: Events, kind: str, field: str) -> str:
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    return "".join(delta[field] for delta in deltas if delta["type"] == kind)


def test_every_request_is_used() -> None:
    source = Path(__file__).read_text()
    names = {path.stem for path in REQUESTS_DIR.glob("*.json")}
    assert {name for name in names if f'"{name}"' not in source} == set()


def test_claude_code_calls_a_tool(client: RealClient, hermes: ScriptedModel) -> None:
    """It reads the tool's input from the deltas, and the cache's part from the usage."""
    call = '{"name": "Read", "arguments": {"file_path": "/project/README.md"}}'
    hermes.answers(
        "README of claude code",
        f"<think>\nRead it.\n</think>\n\nLet me look.\n<tool_call>\n{call}\n</tool_call>",
    )
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


def test_claude_code_returns_the_result(client: RealClient, hermes: ScriptedModel) -> None:
    """The assistant's blocks as they were streamed, and several results in one turn."""
    hermes.answers("no such file", "There is none.")
    calls = [
        {"type": "tool_use", "id": f"toolu_{n}", "name": "Read", "input": {"file_path": f"/{n}"}}
        for n in (1, 2)
    ]
    thought = {"type": "thinking", "thinking": "Read both.", "signature": "c2lnbmVk"}
    results = [
        {
            "type": "tool_result",
            "tool_use_id": "toolu_1",
            "content": "no such file",
            "is_error": True,
        },
        {
            "type": "tool_result",
            "tool_use_id": "toolu_2",
            "content": [{"type": "text", "text": "# Two"}],
            "cache_control": {"type": "ephemeral"},
        },
    ]
    events = client.events(
        "claude_code_turn",
        messages=[
            {"role": "user", "content": "Read both, claude code"},
            {"role": "assistant", "content": [thought, *calls]},
            {"role": "user", "content": results},
        ],
    )
    assert block_deltas(events, "text_delta", "text") == "There is none."
    prompt = hermes.received("no such file")[-1].prompt
    assert prompt.index("Read both.") < prompt.index("no such file") < prompt.index("# Two")


def test_claude_code_asks_for_a_title(client: RealClient, hermes: ScriptedModel) -> None:
    hermes.answers("A title for claude code", '{"title": "Hello"}')
    events = client.events("claude_code_title")
    assert json.loads(block_deltas(events, "text_delta", "text")) == {"title": "Hello"}
    assert hermes.received("A title for claude code")[-1].params.grammar is not None


def test_claude_code_counts_tokens(client: RealClient) -> None:
    assert client.body("claude_code_count_tokens")["input_tokens"] > 10


def test_claude_code_gets_a_full_context_as_its_error(client: RealClient) -> None:
    """That API words it so, with advice in a header. It is not a stream, which begins with 200
    where the refusal takes longer than a busy machine's grace."""
    turn = {"role": "user", "content": "word " * 8000}
    refused = client.send("claude_code_turn", model="llama3", messages=[turn], stream=False)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert "8192" in error["message"]
    assert "CLAUDE_CODE_MAX_CONTEXT_TOKENS" in refused.headers["x-helexa-advice"]


def test_opencode_continues_after_a_tool(client: RealClient, hermes: ScriptedModel) -> None:
    """It keeps the calls' ids and wants the usage in the last chunk."""
    call = '{"name": "bash", "arguments": {"command": "cat README.md", "description": "Show it"}}'
    hermes.answers("List the files, opencode", f"Two.\n<tool_call>\n{call}\n</tool_call>")
    chunks = client.events("opencode_turn")
    assert chunk_calls(chunks) == [("bash", {"command": "cat README.md", "description": "Show it"})]
    assert chat_text(chunks).strip() == "Two."
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    usage = chunks[-1]["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    prompt = hermes.received("List the files, opencode")[-1].prompt
    system = prompt.partition("<|im_end|>")[0]
    assert "You work in a code base." in system
    assert "Working directory: /project" in system
    assert "README.md\nsrc/" in prompt


def chunk_calls(chunks: Events) -> list[tuple[str, Any]]:
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            for call in choice["delta"].get("tool_calls") or []:
                index, function = call["index"], call["function"]
                names.setdefault(index, function.get("name") or "")
                arguments[index] = arguments.get(index, "") + (function.get("arguments") or "")
    return [(names[index], json.loads(arguments[index])) for index in names]


def test_opencode_gets_a_full_context_as_its_error(client: RealClient) -> None:
    refused = client.send("opencode_turn", model="llama3")
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert "opencode.json" in refused.headers["x-helexa-advice"]


def test_codex_continues_after_a_command(client: RealClient, hermes: ScriptedModel) -> None:
    """It keeps nothing here: what the model thought comes back from it, encrypted."""
    hermes.answers("The note of codex", "It says so.")
    events = client.events("codex_turn")
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"][-1]["content"][0]["text"] == "It says so."
    prompt = hermes.received("The note of codex")[-1].prompt
    assert prompt.index("Read it.") < prompt.index("Let me look.") < prompt.index("cat note.txt")


def test_codex_gets_which_mcp_server_is_called(client: RealClient, hermes: ScriptedModel) -> None:
    """It offers each server's tools as a namespace, and looks a call up by both names."""
    call = '<tool_call>\n{"name": "mcp__notes.read", "arguments": {}}\n</tool_call>'
    hermes.answers("The note of codex", call)
    events = client.events("codex_turn")
    item = events[-1]["response"]["output"][-1]
    assert (item["type"], item["namespace"], item["name"]) == (
        "function_call",
        "mcp__notes",
        "read",
    )
    assert "mcp__notes.read" in hermes.received("The note of codex")[-1].prompt


def test_qwen_code_continues_after_a_tool(client: RealClient, hermes: ScriptedModel) -> None:
    """Its tool results are lists of parts."""
    hermes.answers("The note of qwen", "It says so.")
    chunks = client.events("qwen_code_turn")
    assert chat_text(chunks) == "It says so."
    assert chunks[-1]["usage"]["total_tokens"] > 0


def test_zed_reads_every_chunk(client: RealClient, hermes: ScriptedModel) -> None:
    """It fails on a chunk without ``choices`` and on a usage with a count missing."""
    hermes.answers("What is in it, zed?", "Nothing yet.")
    chunks = client.events("zed_turn")
    assert chat_text(chunks) == "Nothing yet."
    for chunk in chunks:
        assert all({"index", "delta"} <= set(choice) for choice in chunk["choices"])
        if chunk.get("usage") is not None:
            assert {"prompt_tokens", "completion_tokens", "total_tokens"} <= set(chunk["usage"])
    assert chunks[-1]["usage"] is not None
    prompt = hermes.received("What is in it, zed?")[-1].prompt
    assert prompt.index("Open the file, ") < prompt.index("fn main() {}")


def test_open_webui_chats(client: RealClient, hermes: ScriptedModel) -> None:
    hermes.answers("Repeat it, open webui", "Hello!###")
    chunks = client.events("open_webui_turn")
    assert chat_text(chunks) == "Hello!"
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    params = hermes.received("Repeat it, open webui")[-1].params
    assert (params.top_k, params.seed, params.max_tokens) == (40, 42, 512)


def test_open_webui_asks_for_a_title(client: RealClient, hermes: ScriptedModel) -> None:
    hermes.answers("A title for open webui", '{"title": "Hello"}')
    body = client.body("open_webui_title")
    assert body["choices"][0]["message"]["content"] == '{"title": "Hello"}'


def test_open_webui_lists_models(scripted_server: ScriptedServe) -> None:
    models = httpx.get(f"{scripted_server.url}/v1/models", timeout=30.0).json()
    assert models["object"] == "list"
    assert {model["object"] for model in models["data"]} == {"model"}


def test_litellm_returns_the_result(client: RealClient, hermes: ScriptedModel) -> None:
    hermes.answers("noon in litellm", "It is noon.")
    chunks = client.events("litellm_tools")
    assert chat_text(chunks) == "It is noon."
    assert chunks[-1]["usage"]["prompt_tokens"] > 0
    whole = client.body("litellm_tools", stream=False, stream_options=None)
    message = whole["choices"][0]["message"]
    assert (message["role"], message["content"]) == ("assistant", "It is noon.")


def test_litellm_by_the_other_dialect(client: RealClient, hermes: ScriptedModel) -> None:
    hermes.answers("litellm's other side", f"Let me see.\n{CLOCK_CALL}")
    body = client.body("litellm_anthropic")
    assert [block["type"] for block in body["content"]] == ["text", "tool_use"]
    assert body["stop_reason"] == "tool_use"
    assert {"input_tokens", "output_tokens"} <= set(body["usage"])


def test_ai_sdk_makes_an_object(client: RealClient, hermes: ScriptedModel) -> None:
    hermes.answers("A dish for the ai sdk", '{"dish": "soup", "steps": ["boil"]}')
    chunks = client.events("ai_sdk_chat")
    assert json.loads(chat_text(chunks)) == {"dish": "soup", "steps": ["boil"]}


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
    sdk_events = client.events("ai_sdk_responses", input=[*given, *references, sent, result])
    assert sdk_events[-1]["response"]["output"][-1]["content"][0]["text"] == "Noon."
    prompt = hermes.received("noon in the sdk")[-1].prompt
    assert "One moment." in prompt
    assert "Ask the clock." in prompt
