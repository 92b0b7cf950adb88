"""What an agent makes of prompts, over a connection of the SDK's own client; with ``each_bridge``
what every wire API must do."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from acp import RequestError, image_block, resource_link_block
from acp.helpers import embedded_text_resource, resource_block

import helexa_acp
from tests.acp.bridge import Bridge, bridge_here, endpoint_table
from tests.acp.fake_endpoint import DIALECTS, BreakOff, FakeEndpoint, Hang, Refuse, Reply
from tests.inference.image_files import base64_of, png

READ = (("read_file", {"path": "notes.txt"}),)


@pytest.fixture(autouse=True)
def _notes(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "notes.txt").write_text("buy milk\n")


async def test_settings_of_an_endpoint_are_sent(tmp_path: Path, endpoint: FakeEndpoint) -> None:
    endpoint.will(Reply("Yes."))
    more = {"api_key": "hx-1", "max_tokens": 77, "reasoning_effort": "low"}
    for wire_api, key, sent in (
        ("openai-chat", "authorization", {"max_tokens": 77, "reasoning_effort": "low"}),
        (
            "openai-responses",
            "authorization",
            {"max_output_tokens": 77, "reasoning": {"effort": "low", "summary": "auto"}},
        ),
        ("anthropic-messages", "x-api-key", {"max_tokens": 77}),
    ):
        async with bridge_here(tmp_path, endpoint_table(endpoint.url, wire_api, **more)) as bridge:
            await bridge.open()
            await bridge.ask("Hello!")
        assert all(one.headers[key].endswith("hx-1") for one in endpoint.received)
        assert sent.items() <= endpoint.prompts[-1].items()
        endpoint.received.clear()


async def test_a_call_is_run_and_answered(
    each_bridge: Bridge, endpoint: FakeEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    read = ("read_file", {"path": "cat.png"})
    (each_bridge.project / "cat.png").write_bytes(png(2, 1))
    sent, seen = base64_of(png(3, 1)), base64_of(png(2, 1))
    endpoint.will(
        Reply("Let me look.", calls=(*READ, read), thought="Two files."),
        Reply("It says: buy milk.", num_input=120, num_output=7),
    )
    await each_bridge.open()
    answer = await each_bridge.ask("What is in my notes?", image_block(sent, "image/png"))
    editor = each_bridge.editor
    assert answer.stop_reason == "end_turn"
    assert editor.texts() == "Let me look.It says: buy milk."
    assert editor.texts("agent_thought_chunk") == "Two files."
    assert len(editor.updates_of("agent_message_chunk")) > 2
    assert list(editor.statuses().values()) == ["completed"] * 2
    shown = editor.updates_of("tool_call_update")[-1].content
    assert [one.content.type for one in shown] == ["text", "image"]
    assert shown[1].content.data == seen
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (220, 17), "both requests"
    context = editor.updates_of("usage_update")[-1]
    assert (context.used, context.size) == (127, 100_000)
    first, second = endpoint.prompts
    for body in (first, second):  # the server takes what it is asked
        DIALECTS[endpoint.received[-1].path][0](json.dumps(body).encode())
    tools = {tool.get("name") or tool["function"]["name"] for tool in first["tools"]}
    assert tools >= {"read_file", "write_file", "edit_file", "list_dir", "bash"}
    assert "# Tools" not in json.dumps(first) and sent in json.dumps(first)
    assert "buy milk" in json.dumps(second) and seen in json.dumps(second)
    assert _result_ids(second) == list(editor.statuses())
    asked = next(one for one in endpoint.received if one.body.get("stream"))
    assert asked.headers["x-include-thinking"] == "true"
    assert asked.headers["user-agent"] == f"helexa-acp/{helexa_acp.__version__}"
    if asked.path == "/v1/messages":
        assert asked.headers["anthropic-version"] == "2023-06-01"
        assert first["max_tokens"] == 8192
        thought = second["messages"][1]["content"][0]
        assert thought["thinking"] == "Two files." and thought["signature"]
    else:
        assert not {"max_tokens", "max_output_tokens"} & first.keys()
    lines = [record.getMessage() for record in caplog.records if "session" in record.getMessage()]
    for part in ("round 1: asking", "http://127.0.0.1", "read_file completed", "round 2: stop"):
        assert any(part in line for line in lines)


def _result_ids(body: dict[str, Any]) -> list[str]:
    messages = body.get("messages") or body["input"]
    contents = [one["content"] for one in messages if isinstance(one.get("content"), list)]
    blocks = [*messages, *(block for content in contents for block in content)]
    keys = {"tool": "tool_call_id", "function_call_output": "call_id", "tool_result": "tool_use_id"}
    kinds = [
        (one, one.get("role") if one.get("role") == "tool" else one.get("type")) for one in blocks
    ]
    return [one[keys[kind]] for one, kind in kinds if kind in keys]


async def test_how_an_answer_ends_or_is_cancelled(
    each_bridge: Bridge, endpoint: FakeEndpoint
) -> None:
    await each_bridge.open()
    endpoint.will(Reply(calls=READ), Reply("As far as it goes", reason="length"))
    assert (await each_bridge.ask("Go on.")).stop_reason == "max_tokens"
    endpoint.will(hang := Hang("Thinking about"))
    asking = asyncio.create_task(each_bridge.ask("Hello?"))
    await hang.begun.wait()
    await each_bridge.cancel()
    assert (await asking).stop_reason == "cancelled"
    async with asyncio.timeout(60):
        await hang.left.wait()
    endpoint.will(Reply("Here I am."))
    assert (await each_bridge.ask("Still there?")).stop_reason == "end_turn"


async def test_a_refusal_and_a_stream_that_breaks_off_are_reported(
    each_bridge: Bridge, endpoint: FakeEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    await each_bridge.open()
    for answer, words in (
        (Refuse(401, "That key is none.", "invalid_api_key"), "That key is none"),
        (Refuse(418, None), "HTTP status 418"),
        (BreakOff("It is a"), "broke off"),
    ):
        endpoint.will(answer)
        caplog.clear()
        with pytest.raises(RequestError, match=words) as caught:
            await each_bridge.ask("Hello!")
        (line,) = [one for one in caplog.records if "prompt failed" in one.getMessage()]
        assert line.levelno == logging.WARNING
        assert str(caught.value) in line.getMessage() and endpoint.url in line.getMessage()
    endpoint.will(Reply("Now it works."))
    assert (await each_bridge.ask("And now?")).stop_reason == "end_turn"


async def test_a_busy_or_unreachable_endpoint_is_asked_again(
    tmp_path: Path, bridge: Bridge, endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)

    monkeypatch.setattr("helexa_acp.wire.endpoints.asyncio.sleep", sleep)
    await bridge.open()
    busy, later = Refuse(503, "It is loading."), Refuse(429, "Too many.", headers="Retry-After: 7")
    endpoint.will(busy, later, Reply("Hello."))
    assert (await bridge.ask("Hello!")).stop_reason == "end_turn"
    assert [one for one in slept if one] == [0.5, 7.0]
    for headers, waits_s in (("Retry-After: 3600", [0.5, 1.0]), ("x-should-retry: false", [])):
        slept.clear()
        endpoint.will(Refuse(429, "Never.", headers=headers))
        with pytest.raises(RequestError, match="Never"):
            await bridge.ask("Hello!")
        assert [one for one in slept if one] == waits_s
    endpoint.will(Reply("No.", edited=(b'"stop"', b'"content_filter"')))
    assert (await bridge.ask("Hello!")).stop_reason == "refusal"
    slept.clear()
    async with bridge_here(tmp_path, endpoint_table("http://127.0.0.1:9/v1")) as nowhere:
        await nowhere.open()
        with pytest.raises(RequestError, match="it cannot be reached"):
            await nowhere.ask("Hello!")
    assert [one for one in slept if one] == [0.5, 1.0]


async def test_files_of_a_prompt(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    endpoint.will(Reply("I see."))
    await bridge.open()
    await bridge.ask(
        "Look at",
        resource_link_block("a b", "file:///work/a%20b#L3"),
        resource_link_block("page", "https://x/y"),
        resource_block(embedded_text_resource("file:///work/c", "text")),
    )
    assert endpoint.prompts[0]["messages"][1]["content"] == (
        'Look at\n[@a b](/work/a b#L3)\n[@page](https://x/y)\n<file path="/work/c">\ntext\n</file>'
    )


async def test_tools_ride_in_prompts_without_them(
    each_bridge: Bridge, endpoint: FakeEndpoint
) -> None:
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
