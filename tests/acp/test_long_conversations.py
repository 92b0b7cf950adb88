"""What becomes of a conversation that does not fit, and of calls that are not understood."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from acp import RequestError, image_block

from helexa_acp.tools import files
from tests.acp.bridge import Bridge, bridge_here, endpoint_table, until
from tests.acp.fake_endpoint import FakeEndpoint, Refuse, Reply
from tests.cases import each_case

READ = (("read_file", {"path": "big.txt"}),)


async def fill(bridge: Bridge, endpoint: FakeEndpoint, num_rounds: int) -> int:
    """How many parts were left out of the last request."""
    (bridge.project / "big.txt").write_text("line\n" * 2000)
    endpoint.will(*[Reply(calls=READ)] * num_rounds, Reply("Read."))
    await bridge.ask("Read it again and again.")
    return elided(endpoint.prompts[-1])


def elided(body: dict[str, Any]) -> int:
    return json.dumps(body).count("were left out")


async def test_by_the_rule_where_nobody_counts_else_by_the_endpoints_count(
    tmp_path: Path, endpoint: FakeEndpoint
) -> None:
    """A tokenizer that takes fewer tokens than the rule leaves more in."""
    table = endpoint_table(endpoint.url, context_window=16_000)
    async with bridge_here(tmp_path, table) as bridge:
        await bridge.open()
        assert await fill(bridge, endpoint, 8) > 0
        counted = [one for one in endpoint.received if one.path == "/v1/messages/count_tokens"]
        assert len(counted) == 1, "asked once, and not again"
        assert elided(bridge.record()) == 0, "the session keeps it all"
        (bridge.project / "big.txt").write_text("lines of words\n" * 9000)
        endpoint.will(Reply(calls=READ), Reply("Read."))
        await bridge.ask("Read it.")
        assert "lines of words" not in json.dumps(endpoint.prompts[-1]), "of this prompt too"
    assert all(len(json.dumps(body)) < 16_000 * 5 for body in endpoint.prompts)
    endpoint.counts = lambda body: len(json.dumps(body)) // 10
    async with bridge_here(tmp_path, table) as bridge:
        await bridge.open()
        assert await fill(bridge, endpoint, 8) == 0
        endpoint.counts = lambda body: len(json.dumps(body)) // 2
        assert await fill(bridge, endpoint, 1) > 0
        assert len(json.dumps(endpoint.prompts[-1])) < 16_000 * 2


TOO_LONG = "x" * 100_000


@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize(
    "prompts",
    [
        pytest.param([("Hello!", True), (TOO_LONG, False), ("And now?", True)], id="one"),
        pytest.param([(TOO_LONG, False), ("Hello!", True)], id="the first"),
        pytest.param([("y" * 25_000, True)] * 4, id="many"),
    ],
)
async def test_a_conversation_continues_after_prompts_beyond_the_context(
    tmp_path: Path, endpoint: FakeEndpoint, is_listed: bool, prompts: list[tuple[str, bool]]
) -> None:
    endpoint.max_characters = 80_000
    window = endpoint.max_characters * 2 // 7
    endpoint.models = [{"id": "fake-model"} | ({"context_length": window} if is_listed else {})]
    endpoint.will(Reply("Yes."))
    async with bridge_here(tmp_path, endpoint_table(endpoint.url, max_tokens=1000)) as bridge:
        await bridge.open()
        for number, (prompt, fits) in enumerate(prompts):
            if fits:
                assert (await bridge.ask(f"{number} {prompt}")).stop_reason == "end_turn"
                assert f"{number} {prompt}" in json.dumps(endpoint.prompts[-1])
            else:
                with pytest.raises(RequestError, match=r"too long.*not kept"):
                    await bridge.ask(prompt)


async def test_images_of_a_model_that_reads_none(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    (bridge.project / "a.png").write_bytes(b"pixels")
    refusal = Refuse(400, "fake-model reads no images", "vision_unsupported")
    read = Reply(calls=(("read_file", {"path": "a.png"}),))
    endpoint.will(Reply("A cat."), read, refusal, Reply("I cannot see it."))
    await bridge.open()
    await bridge.ask("Look!", image_block("AAAA", "image/png"))
    await bridge.ask("And a.png?")
    await bridge.ask("Why?")
    images = [json.dumps(body).count('"image_url": ') for body in endpoint.prompts]
    assert images == [1, 1, 2, 0, 0]
    assert json.dumps(endpoint.prompts[-1]).count("An image was left out") == 2


@each_case(
    ("refusal", "is_kept"),
    [(Refuse(404, "There is no such model."), True), (Refuse(400, "It reads no images."), False)],
)
async def test_a_prompt_stays_unless_its_content_is_refused(
    bridge: Bridge, endpoint: FakeEndpoint, refusal: Refuse, is_kept: bool
) -> None:
    endpoint.will(refusal, Reply("Yes."))
    await bridge.open()
    with pytest.raises(RequestError, match=str(refusal.message)):
        await bridge.ask("The door is blue.", image_block("AAAA", "image/png"))
    await bridge.ask("Once more.")
    assert ("The door is blue." in json.dumps(endpoint.prompts[-1])) is is_kept
    assert ("image_url" in json.dumps(endpoint.prompts[-1])) is is_kept


async def test_fields_that_are_refused_are_left_out(tmp_path: Path, endpoint: FakeEndpoint) -> None:
    """Except where the configuration insists on them."""
    for more, refusal, key, num_asked in (
        ({"wire_api": "anthropic-messages"}, "adaptive thinking is not supported", "thinking", 3),
        ({}, "no function calling", "tools", 3),
        ({"tool_calling": "native"}, "no function calling", "tools", 1),
    ):
        endpoint.will(Refuse(400, refusal), Reply("Yes."))
        endpoint.received.clear()
        async with bridge_here(tmp_path, endpoint_table(endpoint.url, **more)) as bridge:
            await bridge.open()
            if num_asked == 1:
                with pytest.raises(RequestError, match=refusal):
                    await bridge.ask("Hello!")
            else:
                await bridge.ask("Hello!")
                await bridge.ask("Hello again!")
        assert [key in body for body in endpoint.prompts] == [True, False, False][:num_asked]


async def test_calls_in_the_text_repaired_or_not_understood(
    bridge: Bridge, endpoint: FakeEndpoint
) -> None:
    """Also of a server that hands the model's markup through as text, although it takes tools; what
    cannot be read fails, and the model reads why."""
    (bridge.project / "a.txt").write_text("found me")
    call = '{"arguments": {"name": "read_file", "path": "a.txt"}}'
    broken = '{"name":"bash","arguments":{"command":"rm -rf build","cwd": /srv}}'
    repaired = '{"name": "read_file", "arguments": {"path": "a.txt"}}}}'
    endpoint.will(
        Reply(f"I look.\n<tool_call>\n{call}\n</tool_call><tool_call>{broken}</tool_call>"),
        Reply(calls=(("", repaired), ("", '{"path": "a"}'), ("rm_rf", {}), ("bash", '{"comm'))),
        Reply("Sorry."),
    )
    await bridge.open()
    assert (await bridge.ask("Do it.")).stop_reason == "end_turn"
    statuses = ["completed", "failed", "completed", *["failed"] * 3]
    assert list(bridge.editor.statuses().values()) == statuses
    assert "<tool_call>" not in bridge.editor.texts()
    titles = [one.title for one in bridge.editor.updates_of("tool_call")]
    assert titles[-3:] == ["<invalid>"] * 3
    results = [one for one in endpoint.prompts[-1]["messages"] if one["role"] == "tool"]
    assert [one["content"] == "found me" for one in results] == [
        one == "completed" for one in statuses
    ]
    for failed in (results[1], *results[3:]):
        assert failed["content"].startswith("ERROR: this call was not understood")
    *_, calling = (one for one in endpoint.prompts[-1]["messages"] if "tool_calls" in one)
    name = calling["tool_calls"][1]["function"]["name"]
    assert name == "_invalid_", "a name that APIs take"


async def test_calls_that_fail_or_are_not_run(
    bridge: Bridge, endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(folder: Path) -> str:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(files, "listed", broken)
    edit = {"path": "none", "old_text": "a", "new_text": "b"}
    await bridge.open()
    await bridge.set_mode("bypassPermissions")
    endpoint.will(
        Reply(calls=(("edit_file", edit), ("list_dir", {"path": "."}))),
        Reply(calls=(("bash", {"command": "touch a"}),), reason="length", call_id="cut"),
    )
    assert (await bridge.ask("Do it.")).stop_reason == "max_tokens"
    assert not (bridge.project / "a").exists()
    assert bridge.editor.statuses() == {"call_0": "failed", "call_1": "failed"}
    results = [turn["parts"][0]["text"] for turn in bridge.record()["history"] if "parts" in turn]
    for text, expected in zip(
        results[1:], ("No such file", "the tool itself failed", "was cut off"), strict=True
    ):
        assert text.startswith("ERROR: ")
        assert expected in text


async def test_commands(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    endpoint.will(Reply("Hello.", num_input=70, num_output=5))
    await bridge.open()
    await bridge.ask("Hello!")
    await until(lambda: bridge.editor.updates_of("available_commands_update"))
    listed = bridge.editor.updates_of("available_commands_update")
    names = [command.name for command in listed[0].available_commands]
    assert names == ["help", "clear", "compact", "usage", "model", "mode", "tools"]
    for command, expected in {
        "/help": "`/compact`",
        "/usage": "tokens in: 70",
        "/tools": "`read_file`",
        "/mode plan": "The mode is plan.",
        "/mode none": "There is no mode",
        "/model fake:": "names no model",
        "/model other": "The model is other at fake.",
        "/clear": "forgotten",
    }.items():
        bridge.editor.updates.clear()
        assert (await bridge.ask(command)).stop_reason == "end_turn"
        assert expected in bridge.editor.texts()
    assert len(endpoint.prompts) == 1, "commands do not ask the model"
    assert (bridge.record()["model_id"], bridge.record()["history"]) == ("fake:other", [])
    await bridge.ask("/etc/hosts: what is that?")
    assert endpoint.prompts[-1]["model"] == "other"
    assert len(endpoint.prompts[-1]["messages"]) == 2, "the conversation was forgotten"
    await fill(bridge, endpoint, 3)
    await bridge.ask("/compact")
    await bridge.ask("Go on.")
    assert elided(endpoint.prompts[-1]) > 0
