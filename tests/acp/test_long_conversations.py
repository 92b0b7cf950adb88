"""What becomes of a conversation that does not fit, and of calls that are not understood."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from acp import RequestError, image_block

from tests.acp.bridge import Bridge, bridge_here, endpoint_table, until
from tests.acp.fake_endpoint import FakeEndpoint, Refuse, Reply
from tests.cases import each_case

READ = (("read_file", {"path": "big.txt"}),)


async def fill(bridge: Bridge, endpoint: FakeEndpoint, num_rounds: int) -> None:
    (bridge.project / "big.txt").write_text("line\n" * 2000)
    endpoint.answers.clear()
    endpoint.will(*[Reply(calls=READ)] * num_rounds, Reply("Read."))
    await bridge.ask("Read it again and again.")


def elided(body: dict[str, Any]) -> int:
    return json.dumps(body).count("were left out")


async def test_by_the_rule_where_the_endpoint_does_not_count(
    tmp_path: Path, endpoint: FakeEndpoint
) -> None:
    table = endpoint_table(endpoint.url, context_window=16_000)
    async with bridge_here(tmp_path, table) as bridge:
        await bridge.open()
        await fill(bridge, endpoint, 8)
        assert elided(endpoint.prompts[-1]) > 0
        counted = [one for one in endpoint.received if one.path == "/v1/messages/count_tokens"]
        assert len(counted) == 1, "asked once, and not again"
        path = next((bridge.data_dir / "sessions").glob("*.json"))
        assert "were left out" not in path.read_text(), "the session keeps it all"
    assert all(len(json.dumps(body)) < 16_000 * 5 for body in endpoint.prompts)


async def test_the_endpoints_own_count_decides(tmp_path: Path, endpoint: FakeEndpoint) -> None:
    """A tokenizer that takes fewer tokens than the rule leaves more in."""
    endpoint.counts = lambda body: len(json.dumps(body)) // 10
    table = endpoint_table(endpoint.url, context_window=16_000)
    async with bridge_here(tmp_path, table) as bridge:
        await bridge.open()
        await fill(bridge, endpoint, 8)
        assert elided(endpoint.prompts[-1]) == 0
        endpoint.counts = lambda body: len(json.dumps(body)) // 2
        await fill(bridge, endpoint, 1)
        assert elided(endpoint.prompts[-1]) > 0


async def test_a_refusal_teaches_the_window(tmp_path: Path, endpoint: FakeEndpoint) -> None:
    endpoint.models = [{"id": "fake-model"}]
    async with bridge_here(tmp_path, endpoint_table(endpoint.url)) as bridge:
        await bridge.open()
        await fill(bridge, endpoint, 6)
        assert elided(endpoint.prompts[-1]) == 0
        too_long = Refuse(400, "This model's limit is 9000 tokens.", "context_length_exceeded")
        endpoint.answers.clear()
        endpoint.will(too_long, too_long, Reply("Shorter."))
        assert (await bridge.ask("And now?")).stop_reason == "end_turn"
        sizes = [len(json.dumps(body)) for body in endpoint.prompts[-3:]]
        assert sizes[0] > sizes[1] > sizes[2]


TOO_LONG = "x" * 100_000
Prompts = list[tuple[str, bool]]


@pytest.mark.parametrize("is_listed", [True, False])
@each_case(
    "prompts",
    [
        pytest.param([("Hello!", True), (TOO_LONG, False), ("And now?", True)], id="one"),
        pytest.param([(TOO_LONG, False), ("Hello!", True)], id="the first"),
        pytest.param([("y" * 25_000, True)] * 4, id="many"),
    ],
)
async def test_a_conversation_goes_on_after_prompts_beyond_the_context(
    tmp_path: Path, endpoint: FakeEndpoint, is_listed: bool, prompts: Prompts
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


async def test_a_prompt_that_is_refused_is_not_asked_again(
    bridge: Bridge, endpoint: FakeEndpoint
) -> None:
    endpoint.will(Refuse(400, "This model reads no images."), Reply("Yes."))
    await bridge.open()
    with pytest.raises(RequestError, match="reads no images"):
        await bridge.ask("Look!", image_block("AAAA", "image/png"))
    await bridge.ask("Hello!")
    assert "image" not in json.dumps(endpoint.prompts[-1]["messages"])
    assert len(endpoint.prompts[-1]["messages"]) == 2


async def test_images_of_a_model_that_reads_none(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    """Earlier ones, as of another model, and those of results."""
    (bridge.project / "a.png").write_bytes(b"pixels")
    refusal = Refuse(400, "fake-model reads no images", "vision_unsupported")
    read = Reply(calls=(("read_file", {"path": "a.png"}),))
    endpoint.will(Reply("A cat."), read, refusal, Reply("I cannot see it."))
    await bridge.open()
    await bridge.ask("Look!", image_block("AAAA", "image/png"))
    await bridge.ask("And a.png?")
    images = [json.dumps(body).count('"image_url": ') for body in endpoint.prompts]
    assert images == [1, 1, 2, 0]
    assert json.dumps(endpoint.prompts[-1]).count("An image was left out") == 2
    await bridge.ask("Why?")
    assert json.dumps(endpoint.prompts[-1]).count('"image_url": ') == 0


async def test_a_prompt_that_found_no_answer_stays(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    endpoint.will(Refuse(404, "There is no such model."), Reply("Yes."))
    await bridge.open()
    with pytest.raises(RequestError, match="no such model"):
        await bridge.ask("The door is blue.")
    await bridge.ask("Once more.")
    assert "The door is blue." in json.dumps(endpoint.prompts[-1])


async def test_a_result_beyond_the_context_is_left_out(
    tmp_path: Path, endpoint: FakeEndpoint
) -> None:
    """Of the prompt under way too: the model may read less of it."""
    endpoint.max_characters = 40_000
    table = endpoint_table(endpoint.url, context_window=endpoint.max_characters * 2 // 7)
    async with bridge_here(tmp_path, table) as bridge:
        await bridge.open()
        (bridge.project / "big.txt").write_text("lines of words\n" * 3000)
        endpoint.will(Reply(calls=READ), Reply("Read."))
        assert (await bridge.ask("Read it.")).stop_reason == "end_turn"
        assert elided(endpoint.prompts[-1]) == 1


async def test_a_call_that_is_repaired(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    (bridge.project / "a.txt").write_text("found me")
    endpoint.will(
        Reply(calls=(("", '{"name": "read_file", "arguments": {"path": "a.txt"}}}}'),)),
        Reply("Done."),
    )
    await bridge.open()
    await bridge.ask("Read a.txt.")
    assert "found me" in json.dumps(endpoint.prompts[-1])
    assert bridge.editor.statuses() == {"call_0": "completed"}


async def test_a_call_that_is_not_understood(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    endpoint.will(
        Reply(calls=(("", '{"path": "a.txt"}'), ("rm_rf", {}), ("bash", '{"command'))),
        Reply("Sorry."),
    )
    await bridge.open()
    assert (await bridge.ask("Do it.")).stop_reason == "end_turn"
    assert list(bridge.editor.statuses().values()) == ["failed"] * 3
    assert {one.title for one in bridge.editor.updates_of("tool_call")} == {"<invalid>"}
    results = [one for one in endpoint.prompts[-1]["messages"] if one["role"] == "tool"]
    assert len(results) == 3
    assert all(one["content"].startswith("ERROR: this call was not") for one in results)
    (call, *_) = endpoint.prompts[-1]["messages"][2]["tool_calls"]
    assert call["function"]["name"] == "_invalid_", "a name that APIs take"


async def test_a_call_that_was_cut_off_is_not_run(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    call = ("bash", {"command": "touch a"})
    endpoint.will(Reply(calls=(call,), reason="length"))
    await bridge.open()
    await bridge.set_mode("bypassPermissions")
    assert (await bridge.ask("Do it.")).stop_reason == "max_tokens"
    assert not (bridge.project / "a").exists()


async def test_commands(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    endpoint.will(Reply("Hello.", num_input=70, num_output=5))
    await bridge.open()
    await bridge.ask("Hello!")
    await until(lambda: bridge.editor.updates_of("available_commands_update"))
    listed = bridge.editor.updates_of("available_commands_update")
    names = [command.name for command in listed[0].available_commands]
    assert names == ["help", "clear", "compact", "usage", "model", "mode", "tools"]
    expected = {
        "/help": "`/compact`",
        "/usage": "tokens in: 70",
        "/tools": "`read_file`",
        "/mode plan": "The mode is plan.",
        "/mode none": "There is no mode",
        "/model other": "The model is other at fake.",
        "/compact": "in short",
        "/clear": "forgotten",
    }
    for command, expected_text in expected.items():
        bridge.editor.updates.clear()
        assert (await bridge.ask(command)).stop_reason == "end_turn"
        assert expected_text in bridge.editor.texts()
    assert len(endpoint.prompts) == 1, "commands do not ask the model"
    await bridge.ask("/etc/hosts: what is that?")
    assert endpoint.prompts[-1]["model"] == "other"
    assert len(endpoint.prompts[-1]["messages"]) == 2, "the conversation was forgotten"


async def test_compact_shortens_what_is_sent(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    await bridge.open()
    await fill(bridge, endpoint, 3)
    await bridge.ask("/compact")
    await bridge.ask("Go on.")
    assert elided(endpoint.prompts[-1]) > 0


async def test_thinking_that_is_refused_is_left_out(tmp_path: Path, endpoint: FakeEndpoint) -> None:
    endpoint.will(Refuse(400, "adaptive thinking is not supported on this model"), Reply("Yes."))
    table = endpoint_table(endpoint.url, "anthropic-messages")
    async with bridge_here(tmp_path, table) as bridge:
        await bridge.open()
        await bridge.ask("Hello!")
        await bridge.ask("Hello again!")
    assert ["thinking" in body for body in endpoint.prompts] == [True, False, False]
