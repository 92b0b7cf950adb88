"""What an agent makes of prompts, over a connection of the SDK's own client; with ``each_bridge``
what every wire API must do."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from acp import RequestError, image_block

from tests.acp.bridge import Bridge, bridge_here, endpoint_table
from tests.acp.editor import WITH_FILES
from tests.acp.fake_endpoint import BreakOff, FakeEndpoint, Hang, Refuse, Reply


async def test_an_answer_streams(each_bridge: Bridge, endpoint: FakeEndpoint) -> None:
    endpoint.will(Reply("Hello, editor.", thought="They greet me.", num_input=120, num_output=7))
    await each_bridge.open()
    answer = await each_bridge.ask("Hello!")
    editor = each_bridge.editor
    assert answer.stop_reason == "end_turn"
    assert editor.texts() == "Hello, editor."
    assert editor.texts("agent_thought_chunk") == "They greet me."
    assert len(editor.updates_of("agent_message_chunk")) > 1
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (120, 7)
    (context,) = editor.updates_of("usage_update")
    assert (context.used, context.size) == (127, 100_000)
    asked = next(one for one in endpoint.received if one.body.get("stream"))
    assert asked.headers["x-include-thinking"] == "true"
    if asked.path == "/v1/messages":
        assert asked.headers["anthropic-version"] == "2023-06-01"
        assert asked.body["max_tokens"] == 8192
    else:
        assert not {"max_tokens", "max_output_tokens"} & asked.body.keys()


async def test_a_call_is_run_and_answered(each_bridge: Bridge, endpoint: FakeEndpoint) -> None:
    (each_bridge.project / "notes.txt").write_text("buy milk\n")
    endpoint.will(
        Reply("Let me look.", calls=(("read_file", {"path": "notes.txt"}),), thought="A file."),
        Reply("It says: buy milk."),
    )
    await each_bridge.open()
    answer = await each_bridge.ask("What is in my notes?")
    assert answer.stop_reason == "end_turn"
    assert each_bridge.editor.statuses() == {"call_0": "completed"}
    first, second = endpoint.prompts
    assert _tool_names(first) >= {"read_file", "write_file", "edit_file", "list_dir", "bash"}
    assert "# Tools" not in json.dumps(first)
    assert "buy milk" in json.dumps(second)
    assert _result_ids(second) == ["call_0"]
    assert answer.usage is not None
    assert answer.usage.input_tokens == 200, "both requests"


def _tool_names(body: dict[str, Any]) -> set[str]:
    return {tool.get("name") or tool["function"]["name"] for tool in body["tools"]}


def _result_ids(body: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for message in body.get("messages", body.get("input")):
        if message.get("role") == "tool":
            found.append(message["tool_call_id"])
        elif message.get("type") == "function_call_output":
            found.append(message["call_id"])
        elif isinstance(message.get("content"), list):
            found += [
                block["tool_use_id"]
                for block in message["content"]
                if block["type"] == "tool_result"
            ]
    return found


async def test_thinking_that_was_signed_goes_back(tmp_path: Path, endpoint: FakeEndpoint) -> None:
    table = endpoint_table(endpoint.url, "anthropic-messages")
    async with bridge_here(tmp_path, table) as bridge:
        endpoint.will(
            Reply(calls=(("list_dir", {"path": "."}),), thought="Look around."), Reply("Empty.")
        )
        await bridge.open()
        await bridge.ask("What is here?")
    thinking = {"type": "thinking", "thinking": "Look around.", "signature": "signed 12"}
    assert thinking in endpoint.prompts[1]["messages"][1]["content"]


async def test_how_an_answer_ends(each_bridge: Bridge, endpoint: FakeEndpoint) -> None:
    await each_bridge.open()
    for reason, stop_reason in (("length", "max_tokens"), ("refusal", "refusal")):
        endpoint.answers.clear()
        endpoint.will(Reply("As far as it goes", reason=reason))
        assert (await each_bridge.ask("Go on.")).stop_reason == stop_reason


async def test_a_cancelled_request_ends_at_the_endpoint(
    each_bridge: Bridge, endpoint: FakeEndpoint
) -> None:
    hang = Hang("Thinking about")
    endpoint.will(hang)
    await each_bridge.open()
    asking = asyncio.create_task(each_bridge.ask("Hello?"))
    await hang.begun.wait()
    await each_bridge.cancel()
    assert (await asking).stop_reason == "cancelled"
    async with asyncio.timeout(60):
        await hang.left.wait()
    endpoint.answers.clear()
    endpoint.will(Reply("Here I am."))
    assert (await each_bridge.ask("Still there?")).stop_reason == "end_turn"


async def test_a_refusal_and_a_stream_that_breaks_off_are_reported(
    each_bridge: Bridge, endpoint: FakeEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log as well; the next prompt is answered."""
    refusal = Refuse(401, "That key is none.", "invalid_api_key")
    await each_bridge.open()
    for answer, words in ((refusal, "That key is none"), (BreakOff("It is a"), "broke off")):
        endpoint.answers.clear()
        endpoint.will(answer)
        caplog.clear()
        with pytest.raises(RequestError, match=words) as caught:
            await each_bridge.ask("Hello!")
        (line,) = [one for one in caplog.records if "prompt failed" in one.getMessage()]
        assert line.levelno == logging.WARNING
        assert str(caught.value) in line.getMessage() and endpoint.url in line.getMessage()
    endpoint.answers.clear()
    endpoint.will(Reply("Now it works."))
    assert (await each_bridge.ask("And now?")).stop_reason == "end_turn"


async def test_images_go_both_ways(each_bridge: Bridge, endpoint: FakeEndpoint) -> None:
    """The editor's to the model, and one that a tool read to both."""
    (each_bridge.project / "cat.png").write_bytes(b"\x89PNG a cat")
    sent, read = (base64.b64encode(one).decode() for one in (b"\x89PNG no cat", b"\x89PNG a cat"))
    endpoint.will(Reply(calls=(("read_file", {"path": "cat.png"}),)), Reply("A cat."))
    await each_bridge.open()
    await each_bridge.ask("Is this the one in cat.png?", image_block(sent, "image/png"))
    assert sent in json.dumps(endpoint.prompts[0])
    assert read in json.dumps(endpoint.prompts[1])
    shown = each_bridge.editor.updates_of("tool_call_update")[-1].content
    assert [one.content.type for one in shown] == ["text", "image"]
    assert shown[1].content.data == read


async def test_tools_ride_in_the_prompt_where_the_api_has_none(
    each_bridge: Bridge, endpoint: FakeEndpoint
) -> None:
    (each_bridge.project / "notes.txt").write_text("buy milk\n")
    call = '<tool_call>\n{"name": "read_file", "arguments": {"path": "notes.txt"}}\n</tool_call>'
    endpoint.will(
        Refuse(422, "This model's template has no place for tools.", "template_render_failed"),
        Reply(f"Let me look.\n{call}"),
        Reply("It says: buy milk."),
    )
    await each_bridge.open()
    answer = await each_bridge.ask("What is in my notes?")
    assert answer.stop_reason == "end_turn"
    assert each_bridge.editor.texts() == "Let me look.\nIt says: buy milk."
    assert list(each_bridge.editor.statuses().values()) == ["completed"]
    refused, asked, answered = endpoint.prompts
    assert "tools" in refused
    assert "tools" not in asked
    assert "# Tools" in json.dumps(asked)
    assert "<tool_response>" in json.dumps(answered)
    assert "buy milk" in json.dumps(answered)


async def test_a_call_in_the_text_is_run(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    """A server that hands the model's markup through as text, although it takes tools."""
    (bridge.project / "notes.txt").write_text("buy milk\n")
    call = '{"arguments": {"name": "read_file", "path": "notes.txt"}}'
    endpoint.will(Reply(f"Let me look.\n<tool_call>\n{call}\n</tool_call>"), Reply("Milk."))
    await bridge.open()
    answer = await bridge.ask("What is in my notes?")
    assert answer.stop_reason == "end_turn"
    assert list(bridge.editor.statuses().values()) == ["completed"]
    assert "<tool_call>" not in bridge.editor.texts()
    assert "buy milk" in json.dumps(endpoint.prompts[1])


async def test_a_broken_call_in_the_text_fails_and_the_model_reads_why(
    bridge: Bridge, endpoint: FakeEndpoint
) -> None:
    call = '{"name":"bash","arguments":{"command":"rm -rf build","cwd": /srv}}'
    endpoint.will(Reply(f"<tool_call>{call}</tool_call>"), Reply("I try again."))
    await bridge.open()
    answer = await bridge.ask("Clean up.")
    assert answer.stop_reason == "end_turn"
    assert list(bridge.editor.statuses().values()) == ["failed"]
    assert "was not understood" in json.dumps(endpoint.prompts[1])


async def test_rounds_calls_and_endpoints_are_logged(
    bridge: Bridge, endpoint: FakeEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (bridge.project / "notes.txt").write_text("buy milk\n")
    endpoint.will(Reply("", calls=(("read_file", {"path": "notes.txt"}),)), Reply("Milk."))
    await bridge.open()
    await bridge.ask("What is in my notes?")
    lines = [record.getMessage() for record in caplog.records if "session" in record.getMessage()]
    assert sum("round 1: asking" in line for line in lines) == 1
    assert any("call read_file completed" in line for line in lines)
    assert any("round 2: stop" in line for line in lines)
    assert any("http://127.0.0.1" in line for line in lines)


async def test_a_file_that_neither_reads_has_both_causes(
    bridge: Bridge, endpoint: FakeEndpoint
) -> None:
    endpoint.will(Reply(calls=(("read_file", {"path": "missing.txt"}),)), Reply("It is not there."))
    await bridge.open(WITH_FILES)
    await bridge.ask("Read it.")
    sent_body = json.dumps(endpoint.prompts[1])
    assert "No such file" in sent_body
    assert "not open here" in sent_body
