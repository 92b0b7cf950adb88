"""Requests as the clients of our users send them, and what each of them reads in the answer.

The bodies under ``real_clients`` carry the fields and headers that each client sends unasked. Their
``source`` states whether they were recorded, and of which version, or written after the client's
documentation. In recorded ones the prose is ours. The clients themselves are run by
scripts/try-clients; each dialect's answers are pinned in ``tests/golden``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live.clients.agents import call_of
from tests.live.scripted.model import CLOCK_CALL, ScriptedModel, ScriptedServe
from tests.live.serving import WAIT_TIMEOUT_S, chat_text, events_of

REQUESTS_DIR = Path(__file__).parent / "real_clients"
THOUGHT = "<think>\nRead it.\n</think>\n\nLet me look.\n"
Call = tuple[str, dict[str, str]]


def asked(serve: ScriptedServe, name: str, **changes: Any) -> tuple[str, list[Call], Any]:
    """The text of the answer, its calls, and its last event or its body."""
    request = json.loads((REQUESTS_DIR / f"{name}.json").read_text())
    response = httpx.post(
        serve.url + request["path"],
        headers=request["headers"] | {"content-type": "application/json"},
        content=json.dumps(request["body"] | changes),
        timeout=WAIT_TIMEOUT_S,
    )
    assert response.status_code == 200, response.text
    is_stream = response.headers["content-type"].startswith("text/event-stream")
    events = events_of(response.text) if is_stream else [response.json()]
    match request["path"].partition("?")[0].rpartition("/")[2], is_stream:
        case "completions", True:
            assert all({"index", "delta"} <= set(one) for e in events for one in e["choices"])
            deltas = [one["delta"] for event in events for one in event["choices"]]
            parts = [one["function"] for delta in deltas for one in delta.get("tool_calls") or []]
            names = [part["name"] for part in parts if part.get("name")]
            written = "".join(part.get("arguments") or "" for part in parts)
            calls = [(name, json.loads(written)) for name in names]
            return chat_text(events), calls, events[-1]
        case "messages", True:
            starts = [
                one["content_block"] for one in events if one["type"] == "content_block_start"
            ]
            deltas = [one["delta"] for one in events if one["type"] == "content_block_delta"]
            written = "".join(one.get("partial_json", "") for one in deltas)
            names = [one["name"] for one in starts if one["type"] == "tool_use"]
            text = "".join(one.get("text", "") for one in deltas)
            return text, [(name, json.loads(written)) for name in names], events[-2]
        case "responses", _:
            output = events[-1]["response"]["output"]
            messages = [item for item in output if item["type"] == "message"]
            calls = [item for item in output if item["type"] == "function_call"]
            made = [(one["name"], json.loads(one["arguments"])) for one in calls]
            return "".join(one["content"][0]["text"] for one in messages), made, events[-1]
    return "", [], events[0]


BASH = {"command": "cat README.md", "description": "Show it"}
README = {"file_path": "/project/README.md"}
TURNS: dict[str, tuple[str, str, str, list[Call], tuple[str, ...]]] = {
    "qwen_code_turn": ("The note of qwen", "It says so.", "It says so.", [], ()),
    "zed_turn": ("What is in it, zed?", "Nothing.", "Nothing.", [], ("the file, ", "fn main() {}")),
    "open_webui_turn": ("Repeat it, open webui", "Hello!###", "Hello!", [], ()),
    "litellm_tools": ("noon in litellm", "It is noon.", "It is noon.", [], ()),
    "ai_sdk_chat": ("A dish for the ai sdk", *['{"dish": "soup", "steps": ["boil"]}'] * 2, [], ()),
    "claude_code_title": ("A title for claude code", *['{"title": "Hello"}'] * 2, [], ()),
    "claude_code_turn": (
        "README of claude code",
        THOUGHT + call_of("Read", json.dumps(README)),
        "Let me look.",
        [("Read", README)],
        ("You help in a terminal.", "Agents that may be started: none."),
    ),
    "opencode_turn": (
        *("List the files, opencode", f"Two.\n{call_of('bash', json.dumps(BASH))}", "Two."),
        *([("bash", BASH)], ("Working directory: /project", "README.md\nsrc/")),
    ),
    "codex_turn": (
        *("The note of codex", call_of("mcp__notes.read", "{}"), "", [("read", {})]),
        ("mcp__notes.read", "Read it.", "Let me look.", "cat note.txt"),
    ),
}
"""What each asks, what the model writes, the text and the calls that are read, and what stands in
the prompt, in that order."""


@pytest.mark.parametrize("name", TURNS)
def test_turns_are_read(scripted_server: ScriptedServe, hermes: ScriptedModel, name: str) -> None:
    """Open WebUI has a stop string; Zed fails on a usage with a count missing. Codex keeps nothing
    here: what the model thought comes back from it, encrypted. It looks a call up by the namespace
    of its MCP server too."""
    question, written, text, calls, shown = TURNS[name]
    hermes.answers(question, written)
    found = asked(scripted_server, name)
    assert (found[0].strip(), found[1]) == (text, calls)
    received = hermes.received(question)[-1]
    places = [received.prompt.index(words) for words in shown]
    assert places == sorted(places)
    assert "cc_version" not in received.prompt, "it changes and would spoil the cache"
    usage = (found[2].get("response") or found[2])["usage"]
    assert {"total_tokens", "cache_read_input_tokens"} & set(usage)
    if name == "open_webui_turn":
        params = received.params
        assert (params.top_k, params.seed, params.max_tokens) == (40, 42, 512)
    if name == "codex_turn":
        assert found[2]["response"]["output"][-1]["namespace"] == "mcp__notes"
    if name in ("claude_code_title", "ai_sdk_chat"):
        assert received.params.grammar is not None


def test_whole_answers_and_counts(scripted_server: ScriptedServe, hermes: ScriptedModel) -> None:
    hermes.answers("A title for", '{"title": "Hello"}')
    *_, body = asked(scripted_server, "open_webui_title")
    assert body["choices"][0]["message"]["content"] == '{"title": "Hello"}'
    assert asked(scripted_server, "claude_code_count_tokens")[2]["input_tokens"] > 10
    hermes.answers("litellm's other side", f"Let me see.\n{CLOCK_CALL}")
    *_, body = asked(scripted_server, "litellm_anthropic")
    assert [block["type"] for block in body["content"]] == ["text", "tool_use"]
    assert body["stop_reason"] == "tool_use"


def test_ai_sdk_refers_to_stored_items(
    scripted_server: ScriptedServe, hermes: ScriptedModel
) -> None:
    """Its next request names items of the earlier answer by id, calls aside."""
    thought = "<think>\nAsk the clock.\n</think>\n\nOne moment.\n"
    hermes.answers("in an ai sdk response", thought + CLOCK_CALL)
    hermes.answers("noon in the sdk", "Noon.")
    *_, last = asked(scripted_server, "ai_sdk_responses")
    items = last["response"]["output"]
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call"]
    call = items[2]
    given = json.loads((REQUESTS_DIR / "ai_sdk_responses.json").read_text())["body"]["input"]
    sent = {name: call[name] for name in ("type", "id", "call_id", "name", "arguments")}
    result = {"type": "function_call_output", "call_id": call["call_id"]}
    result["output"] = "noon in the sdk"
    references = [{"type": "item_reference", "id": item["id"]} for item in items[:2]]
    changed = [*given, *references, sent, result]
    assert asked(scripted_server, "ai_sdk_responses", input=changed)[0] == "Noon."
    prompt = hermes.received("noon in the sdk")[-1].prompt
    assert "One moment." in prompt
    assert "Ask the clock." in prompt
