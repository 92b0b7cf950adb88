"""helexa-acp with the SDK's client on one side and a whole helexa server on the other."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.acp.bridge import Bridge, bridge_here, endpoint_table
from tests.live.scripted.model import ScriptedModel
from tests.live.scripted.server import ScriptedServe


@pytest.fixture(params=["openai-chat", "openai-responses", "anthropic-messages"])
def table(request: pytest.FixtureRequest, scripted_server: ScriptedServe) -> dict[str, Any]:
    url = f"{scripted_server.url}/v1"
    return endpoint_table(url, request.param, default_model="hermes")


@pytest.fixture
async def bridge(tmp_path: Path, table: dict[str, Any]) -> AsyncIterator[Bridge]:
    async with bridge_here(tmp_path, table) as made:
        yield made


def call(name: str, **arguments: str) -> str:
    written = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{written}\n</tool_call>"


async def test_a_task(
    bridge: Bridge, hermes: ScriptedModel, request: pytest.FixtureRequest
) -> None:
    """Thinks, reads, edits after asking, answers; the model sees each result."""
    mark = f"task-{request.node.name}"
    (bridge.project / "notes.txt").write_text(f"{mark}-read: buy milk\n")
    read = call("read_file", path="notes.txt")
    edit = call("edit_file", path="notes.txt", old_text="milk", new_text="bread")
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
