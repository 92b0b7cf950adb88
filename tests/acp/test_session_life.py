"""Sessions: made, listed, loaded and resumed; one prompt at a time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from acp import RequestError
from acp.schema import SseMcpServer

from tests.acp.bridge import Bridge, bridge_here, endpoint_table, has_ended, until
from tests.acp.fake_endpoint import FakeEndpoint, Hang, Reply


def session_file(bridge: Bridge) -> dict[str, Any]:
    path = bridge.data_dir / "sessions" / f"{bridge.session_id}.json"
    read: dict[str, Any] = json.loads(path.read_text())
    return read


async def test_what_is_announced(bridge: Bridge) -> None:
    capabilities = await bridge.connection.initialize(protocol_version=1)
    can = capabilities.agent_capabilities
    assert can is not None
    assert can.load_session
    assert can.prompt_capabilities is not None
    assert (can.prompt_capabilities.image, can.prompt_capabilities.audio) == (True, False)
    assert can.mcp_capabilities is not None
    assert (can.mcp_capabilities.http, can.mcp_capabilities.sse) == (True, False)
    assert can.session_capabilities is not None
    assert can.session_capabilities.list is not None
    made = await bridge.connection.new_session(cwd=str(bridge.project), mcp_servers=[])
    assert made.modes is not None
    modes = [mode.id for mode in made.modes.available_modes]
    assert (made.modes.current_mode_id, modes) == (
        "default",
        ["default", "bypassPermissions", "plan"],
    )


async def test_a_loaded_session_is_shown_and_gone_on_from(
    tmp_path: Path, endpoint: FakeEndpoint
) -> None:
    table = endpoint_table(endpoint.url)
    endpoint.will(
        Reply("I look.", calls=(("list_dir", {"path": "."}),), thought="Hm."),
        Reply(calls=(("update_plan", {"entries": [{"content": "rest", "status": "pending"}]}),)),
        Reply("It is empty."),
    )
    async with bridge_here(tmp_path, table) as bridge:
        await bridge.open()
        await bridge.set_mode("bypassPermissions")
        await bridge.ask("What is   here?\nAnswer in one line, please, and not in more than that.")
        session_id, title = (
            bridge.session_id,
            "What is here? Answer in one line, please, and not in more t…",
        )
        listed = await bridge.connection.list_sessions(cwd=str(bridge.project))
        assert [(one.session_id, one.title) for one in listed.sessions] == [(session_id, title)]
        assert len(title) == 60
        elsewhere = await bridge.connection.list_sessions(cwd="/elsewhere")
        assert elsewhere.sessions == []
    async with bridge_here(tmp_path, table) as bridge:
        await bridge.connection.initialize(protocol_version=1)
        loaded = await bridge.connection.load_session(
            cwd=str(bridge.project), session_id=session_id, mcp_servers=[]
        )
        assert loaded.modes is not None
        assert loaded.modes.current_mode_id == "bypassPermissions"
        kinds = [one.session_update for one in bridge.editor.updates]
        assert [kind for kind in kinds if kind != "available_commands_update"] == [
            *("user_message_chunk", "agent_thought_chunk", "agent_message_chunk", "tool_call"),
            *("tool_call", "plan", "agent_message_chunk"),
        ]
        bridge.session_id = session_id
        endpoint.answers.clear()
        endpoint.will(Reply("Still empty."))
        await bridge.ask("And now?")
    roles = [message["role"] for message in endpoint.prompts[-1]["messages"]]
    assert roles == [
        *("system", "user", "assistant", "tool", "assistant", "tool"),
        *("assistant", "user"),
    ]


async def test_resume_shows_nothing_again(tmp_path: Path, endpoint: FakeEndpoint) -> None:
    table = endpoint_table(endpoint.url)
    endpoint.will(Reply("Hello."))
    async with bridge_here(tmp_path, table) as bridge:
        await bridge.open()
        await bridge.ask("Hello!")
        session_id = bridge.session_id
    async with bridge_here(tmp_path, table) as bridge:
        bridge.session_id = session_id
        await bridge.connection.initialize(protocol_version=1)
        await bridge.connection.resume_session(
            cwd=str(bridge.project), session_id=session_id, mcp_servers=[]
        )
        assert not bridge.editor.updates_of("user_message_chunk")
        await bridge.ask("Go on.")
    assert len(endpoint.prompts[-1]["messages"]) == 4


async def test_a_session_is_open_in_one_place(tmp_path: Path, endpoint: FakeEndpoint) -> None:
    table = endpoint_table(endpoint.url)
    endpoint.will(Reply("Hello."))
    async with bridge_here(tmp_path, table) as first, bridge_here(tmp_path, table) as second:
        await first.open()
        await first.ask("Hello!")
        await second.open()
        load = second.connection.load_session
        cwd = str(second.project)
        with pytest.raises(RequestError, match="open elsewhere"):
            await load(cwd=cwd, session_id=first.session_id, mcp_servers=[])
        await first.connection.close_session(session_id=first.session_id)
        await load(cwd=cwd, session_id=first.session_id, mcp_servers=[])
        with pytest.raises(RequestError, match="not open"):
            await first.ask("Hello?")


async def test_the_file_is_written_every_round(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    hang = Hang("So")
    endpoint.will(Reply("I look.", calls=(("list_dir", {"path": "."}),)), hang)
    await bridge.open()
    asking = asyncio.create_task(bridge.ask("What is here?"))
    await hang.begun.wait()
    roles = [turn["role"] for turn in session_file(bridge)["history"]]
    assert roles == ["user", "assistant", "tool"]
    await until(lambda: bridge.editor.texts().endswith("So"))
    await bridge.cancel()
    await asking
    assert session_file(bridge)["history"][-1]["text"] == "So"


async def test_a_session_without_a_prompt_leaves_no_file(bridge: Bridge) -> None:
    await bridge.open()
    await bridge.set_mode("plan")
    assert not (bridge.data_dir / "sessions").exists()


async def test_a_prompt_cancels_the_one_before(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    hang = Hang("Let me")
    endpoint.will(hang, Reply("Yes."))
    await bridge.open()
    first = asyncio.create_task(bridge.ask("A long story, please."))
    await hang.begun.wait()
    answers = await asyncio.gather(*(bridge.ask(f"Short, please. {i}") for i in range(3)))
    assert (await first).stop_reason == "cancelled"
    reasons = [answer.stop_reason for answer in answers]
    assert reasons == ["cancelled", "cancelled", "end_turn"]
    async with asyncio.timeout(60):
        await hang.left.wait()


async def test_sessions_do_not_wait_for_each_other(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    hang = Hang("Let me")
    endpoint.will(hang, Reply("Yes."))
    first_id = await bridge.open()
    first = asyncio.create_task(bridge.ask("A long story, please."))
    await hang.begun.wait()
    assert await bridge.new() != first_id
    assert (await bridge.ask("Short, please.")).stop_reason == "end_turn"
    await bridge.connection.cancel(session_id=first_id)
    assert (await first).stop_reason == "cancelled"


async def test_a_cancelled_command_ends(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    script = "echo $$ > pid; sleep 600 & echo $! > child; wait"
    endpoint.will(Reply(calls=(("bash", {"command": script}),)), Reply("Done."))
    await bridge.open()
    await bridge.set_mode("bypassPermissions")
    asking = asyncio.create_task(bridge.ask("Wait."))
    child = bridge.project / "child"
    await until(lambda: child.exists() and child.read_text().strip())
    await bridge.cancel()
    assert (await asking).stop_reason == "cancelled"
    for name in ("pid", "child"):
        pid = (bridge.project / name).read_text().strip()
        await until(lambda pid=pid: has_ended(pid))


async def test_after_25_rounds_it_stops(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    endpoint.will(Reply(calls=(("list_dir", {"path": "."}),)))
    await bridge.open()
    assert (await bridge.ask("Go on for ever.")).stop_reason == "max_turn_requests"
    assert len(endpoint.prompts) == 25
    assert len(bridge.editor.statuses()) == 25, "each call has an id of its own"


async def test_models_are_chosen(tmp_path: Path, endpoint: FakeEndpoint) -> None:
    endpoint.models = [{"id": "a"}, {"id": "b:7"}, {"id": "vectors", "limit": {"output": 0}}]
    endpoint.will(Reply("Yes."))
    table = endpoint_table(endpoint.url)
    del table["endpoints"][0]["default_model"]
    async with bridge_here(tmp_path, table) as bridge:
        await bridge.connection.initialize(protocol_version=1)
        made = await bridge.connection.new_session(cwd=str(bridge.project), mcp_servers=[])
        bridge.session_id = made.session_id
        assert made.config_options is not None
        (option,) = made.config_options
        assert (option.id, option.current_value) == ("model", "a")
        await bridge.connection.set_config_option(
            config_id="model", session_id=made.session_id, value="b:7"
        )
        await bridge.ask("Hello!")
        assert endpoint.prompts[-1]["model"] == "b:7"
        assert session_file(bridge)["model_id"] == "fake:b:7"
        with pytest.raises(RequestError, match="names no model"):
            await bridge.connection.set_config_option(
                config_id="model", session_id=made.session_id, value=" "
            )


async def test_clients_of_an_older_protocol_choose_models_too(
    bridge: Bridge, endpoint: FakeEndpoint
) -> None:
    endpoint.will(Reply("Yes."))
    endpoint.aliases = {"other"}
    await bridge.open()
    send: Any = bridge.connection._conn.send_request
    made = await send("session/new", {"cwd": str(bridge.project), "mcpServers": []})
    assert made["models"] == {
        "currentModelId": "fake-model",
        "availableModels": [{"modelId": "fake-model", "name": "fake-model"}],
    }
    bridge.session_id = made["sessionId"]
    await send("session/set_model", {"sessionId": made["sessionId"], "modelId": "other"})
    await bridge.ask("Hello!")
    assert endpoint.prompts[-1]["model"] == "other"


async def test_a_model_that_does_not_exist_is_not_chosen(
    bridge: Bridge, endpoint: FakeEndpoint
) -> None:
    endpoint.will(Reply("Yes."))
    await bridge.open()
    send: Any = bridge.connection._conn.send_request
    made = await send("session/new", {"cwd": str(bridge.project), "mcpServers": []})
    bridge.session_id = session_id = made["sessionId"]
    with pytest.raises(RequestError, match="no model 'gone'; there are fake-model"):
        await send("session/set_model", {"sessionId": session_id, "modelId": "gone"})
    with pytest.raises(RequestError, match="no model 'gone'"):
        await bridge.connection.set_config_option(
            config_id="model", session_id=session_id, value="gone"
        )
    await bridge.ask("Hello!")
    assert endpoint.prompts[-1]["model"] == "fake-model"


@pytest.mark.parametrize("exists", [True, False])
async def test_the_usual_alias_is_chosen_where_it_exists(
    tmp_path: Path, endpoint: FakeEndpoint, exists: bool
) -> None:
    """An alias need not be in the list of models."""
    if exists:
        endpoint.aliases = {"helexa/large"}
    table = endpoint_table(endpoint.url)
    del table["endpoints"][0]["default_model"]
    async with bridge_here(tmp_path, table) as bridge:
        await bridge.connection.initialize(protocol_version=1)
        made = await bridge.connection.new_session(cwd=str(bridge.project), mcp_servers=[])
        assert made.config_options is not None
        chosen = made.config_options[0].current_value
        assert chosen == ("helexa/large" if exists else "fake-model")


async def test_what_cannot_be_is_refused(bridge: Bridge) -> None:
    await bridge.open()
    new = bridge.connection.new_session
    with pytest.raises(RequestError, match="absolute"):
        await new(cwd="relative", mcp_servers=[])
    sse = SseMcpServer(type="sse", name="old", url="http://h", headers=[])
    with pytest.raises(RequestError, match="sse is not supported"):
        await new(cwd="/", mcp_servers=[sse])
    with pytest.raises(RequestError, match="no mode"):
        await bridge.set_mode("yolo")
    with pytest.raises(RequestError, match="There is no session"):
        await bridge.connection.load_session(cwd="/", session_id="hxa-none", mcp_servers=[])
    with pytest.raises(RequestError, match="not a session's id"):
        await bridge.connection.load_session(cwd="/", session_id="../../x", mcp_servers=[])
    with pytest.raises(RequestError, match="the prompt is empty"):
        await bridge.ask("   ")
