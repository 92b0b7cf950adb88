"""Sessions: made, listed, loaded and resumed; one prompt at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from acp import RequestError
from acp.schema import SseMcpServer

from helexa_acp import agent
from tests.acp.bridge import Bridge, bridge_here, endpoint_table, has_ended, until
from tests.acp.fake_endpoint import FakeEndpoint, Hang, Reply

LOOK = (("list_dir", {"path": "."}),)


async def test_what_is_announced_and_what_cannot_be_refused(bridge: Bridge) -> None:
    answer = await bridge.send("initialize", protocolVersion=1)
    assert answer["agentCapabilities"] == {
        "loadSession": True,
        "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
        "mcpCapabilities": {"http": True, "sse": False},
        "sessionCapabilities": {"list": {}, "resume": {}, "close": {}},
    }
    made = await bridge.send("session/new", cwd=str(bridge.project), mcpServers=[])
    modes = [mode["id"] for mode in made["modes"]["availableModes"]]
    assert modes == ["default", "bypassPermissions", "plan"]
    assert made["modes"]["currentModeId"] == "default"
    assert await bridge.send("authenticate", methodId="none") == {}
    bridge.session_id = made["sessionId"]
    new = bridge.connection.new_session
    sse = SseMcpServer(type="sse", name="old", url="http://h", headers=[])
    for asked, why in (
        (new(cwd="relative", mcp_servers=[]), "absolute"),
        (new(cwd="/", mcp_servers=[sse]), "sse is not supported"),
        (bridge.set_mode("yolo"), "no mode"),
        (bridge.ask("   "), "the prompt is empty"),
        (bridge.load("hxa-none"), "There is no session"),
        (bridge.load("../../x"), "not a session's id"),
    ):
        with pytest.raises(RequestError, match=why):
            await asked


async def test_a_loaded_session_is_shown_and_continued(
    tmp_path: Path, endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "SESSIONS_PER_PAGE", 1)
    table = endpoint_table(endpoint.url)
    endpoint.will(Reply("Hello."))
    async with bridge_here(tmp_path, table) as bridge:
        await bridge.open()
        await bridge.ask("Before.")
        session_id = await bridge.new()
        await bridge.set_mode("bypassPermissions")
        plan = ("update_plan", {"entries": [{"content": "rest", "status": "pending"}]})
        endpoint.will(Reply("I look.", calls=(*LOOK, plan), thought="Hm."), Reply("It is empty."))
        await bridge.ask("What is   here?\nAnswer in one line, please, and not in more than that.")
        listed = await bridge.connection.list_sessions(cwd=str(bridge.project))
        title = "What is here? Answer in one line, please, and not in more t…"
        assert [(one.session_id, one.title) for one in listed.sessions] == [(session_id, title)]
        listed = await bridge.connection.list_sessions(cursor=listed.next_cursor)
        assert [one.title for one in listed.sessions] == ["Before."]
        assert listed.next_cursor is None
        assert not (await bridge.connection.list_sessions(cwd="/elsewhere")).sessions
    async with bridge_here(tmp_path, table) as bridge:
        await bridge.connection.initialize(protocol_version=1)
        loaded = await bridge.load(session_id)
        assert loaded.modes.current_mode_id == "bypassPermissions"
        kinds = [one.session_update for one in bridge.editor.updates]
        assert [kind for kind in kinds if kind != "available_commands_update"] == [
            *("user_message_chunk", "agent_thought_chunk", "agent_message_chunk", "tool_call"),
            *("tool_call", "plan", "agent_message_chunk"),
        ]
        await bridge.ask("And now?")
    roles = [message["role"] for message in endpoint.prompts[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant", "user"]
    async with bridge_here(tmp_path, table) as bridge:
        await bridge.connection.initialize(protocol_version=1)
        await bridge.connection.resume_session(
            cwd=str(bridge.project), session_id=session_id, mcp_servers=[]
        )
        assert not bridge.editor.updates_of("user_message_chunk")


async def test_a_session_is_open_in_one_place(tmp_path: Path, endpoint: FakeEndpoint) -> None:
    table = endpoint_table(endpoint.url)
    endpoint.will(Reply("Hello."))
    async with bridge_here(tmp_path, table) as first, bridge_here(tmp_path, table) as second:
        await first.open()
        await first.ask("Hello!")
        await second.open()
        with pytest.raises(RequestError, match="open elsewhere"):
            await second.load(first.session_id)
        await first.load(first.session_id)
        await first.connection.close_session(session_id=first.session_id)
        await second.load(first.session_id)
        with pytest.raises(RequestError, match="not open"):
            await first.ask("Hello?")


async def test_the_file_is_written_every_round_and_a_prompt_cancels_the_one_before(
    bridge: Bridge, endpoint: FakeEndpoint
) -> None:
    """Those of other sessions do not wait for it."""
    hang = Hang("So")
    endpoint.will(Reply("I look.", calls=LOOK), hang, Reply("Yes."))
    first_id = await bridge.open()
    await bridge.set_mode("plan")
    assert not (bridge.data_dir / "sessions").exists(), "there is no prompt yet"
    first = asyncio.create_task(bridge.ask("What is here?"))
    await hang.begun.wait()
    roles = [turn["role"] for turn in bridge.record()["history"]]
    assert roles == ["user", "assistant", "tool"]
    await until(lambda: bridge.editor.texts().endswith("So"))
    await bridge.new()
    assert (await bridge.ask("Short, please.")).stop_reason == "end_turn"
    bridge.session_id = first_id
    answers = await asyncio.gather(*(bridge.ask(f"Short, please. {i}") for i in range(3)))
    assert (await first).stop_reason == "cancelled"
    reasons = [answer.stop_reason for answer in answers]
    assert reasons == ["cancelled", "cancelled", "end_turn"]
    async with asyncio.timeout(60):
        await hang.left.wait()
    assert "So" in [turn.get("text") for turn in bridge.record()["history"]]
    await bridge.set_mode("default")
    assert bridge.record()["mode_id"] == "default"
    bridge.editor.updates.clear()
    endpoint.received.clear()
    endpoint.will(Reply(calls=LOOK))
    assert (await bridge.ask("Go on for ever.")).stop_reason == "max_turn_requests"
    assert len(endpoint.prompts) == 25
    assert len(bridge.editor.statuses()) == 25, "each call has an id of its own"


@pytest.mark.parametrize("closes", [False, True])
async def test_a_cancelled_command(bridge: Bridge, endpoint: FakeEndpoint, closes: bool) -> None:
    script = "echo $$ > pid; sleep 600 & echo $! > child; wait"
    endpoint.will(Reply(calls=(("bash", {"command": script}),)), Reply("Done."))
    await bridge.open()
    await bridge.set_mode("bypassPermissions")
    asking = asyncio.create_task(bridge.ask("Wait."))
    child = bridge.project / "child"
    await until(lambda: child.exists() and child.read_text().strip())
    if closes:
        await bridge.connection.close_session(session_id=bridge.session_id)
    await bridge.cancel()
    await bridge.cancel()
    assert (await asking).stop_reason == "cancelled"
    for name in ("pid", "child"):
        pid = (bridge.project / name).read_text().strip()
        await until(lambda pid=pid: has_ended(pid))


async def test_a_model_is_chosen_where_none_is(tmp_path: Path, endpoint: FakeEndpoint) -> None:
    """An alias need not be in the list of models; models that only make vectors are not offered."""
    table, vectors = endpoint_table(endpoint.url), {"id": "vectors", "limit": {"output": 0}}
    del table["endpoints"][0]["default_model"]
    for aliases, listed, chosen in (
        (set(), ["a", "b:7"], "a"),
        ({"helexa/large"}, ["a"], "helexa/large"),
        (set(), ["a", "helexa/large"], "helexa/large"),
        (set(), [], "helexa/large"),
    ):
        endpoint.aliases = aliases
        endpoint.models = [vectors, *({"id": one} for one in listed)]
        async with bridge_here(tmp_path, table) as bridge:
            await bridge.connection.initialize(protocol_version=1)
            made = await bridge.send("session/new", cwd=str(bridge.project), mcpServers=[])
        (option,) = made["configOptions"]
        assert (option["id"], option["currentValue"]) == ("model", chosen)
        offered = [one["value"] for one in option["options"]]
        assert offered == list(dict.fromkeys([*listed, chosen]))


async def test_models_are_chosen(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    endpoint.models = [{"id": "fake-model"}, {"id": "b:7"}]
    endpoint.aliases = {"other"}
    endpoint.will(Reply("Yes."))
    await bridge.open()
    made = await bridge.send("session/new", cwd=str(bridge.project), mcpServers=[])
    bridge.session_id = session_id = made["sessionId"]
    assert made["models"] == {
        "currentModelId": "fake-model",
        "availableModels": [{"modelId": one, "name": one} for one in ("fake-model", "b:7")],
    }

    async def set_option(value: Any, config_id: str = "model") -> Any:
        return await bridge.connection.set_config_option(
            config_id=config_id, session_id=session_id, value=value
        )

    for value, config_id, why in (
        (" ", "model", "names no model"),
        ("gone", "model", "no model 'gone'; there are fake-model, b:7"),
        (True, "model", "no option 'model'"),
        ("b:7", "colour", "no option 'colour'"),
    ):
        with pytest.raises(RequestError, match=why):
            await set_option(value, config_id)
    with pytest.raises(RequestError, match="no model 'gone'"):
        await bridge.send("session/set_model", sessionId=session_id, modelId="gone")
    await bridge.ask("Hello!")
    assert (await set_option("b:7")).config_options[0].current_value == "b:7"
    assert bridge.record()["model_id"] == "fake:b:7"
    await bridge.ask("Hello!")
    await bridge.send("session/set_model", sessionId=session_id, modelId="other")
    await bridge.ask("Hello!")
    assert [body["model"] for body in endpoint.prompts] == ["fake-model", "b:7", "other"]


async def test_models_that_are_listed_late_come_as_an_update(
    bridge: Bridge, endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "LIST_WAIT_S", 0.0)
    endpoint.may_list.clear()
    await bridge.open()
    endpoint.may_list.set()
    await until(lambda: bridge.editor.updates_of("config_option_update"))
    (update,) = bridge.editor.updates_of("config_option_update")
    assert update.config_options[0].current_value == "fake-model"
