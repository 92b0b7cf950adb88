"""The agent beside its editor: in this process over a socket, or as a process over pipes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acp import PROTOCOL_VERSION, text_block
from acp.client import ClientSideConnection
from acp.schema import ClientCapabilities, PromptResponse

from helexa_acp.agent import HelexaAgent
from helexa_acp.config import from_table
from helexa_acp.serving import EditorTransport, serve_over
from tests.acp.editor import BARE, Editor

PACKAGE_DIR = Path(__file__).resolve().parent.parent.parent / "acp"
LIMIT_BYTES = 2**26
WAIT_LIMIT_S = 60.0


@dataclass(slots=True)
class Bridge:
    """An editor that is connected to an agent, and the project that they work on."""

    editor: Editor
    connection: ClientSideConnection
    project: Path
    data_dir: Path
    session_id: str = ""

    async def open(self, capabilities: ClientCapabilities = BARE, **named: Any) -> str:
        await self.connection.initialize(
            protocol_version=PROTOCOL_VERSION, client_capabilities=capabilities
        )
        return await self.new(**named)

    async def new(self, **named: Any) -> str:
        made = await self.connection.new_session(
            cwd=str(self.project), mcp_servers=named.get("mcp_servers", [])
        )
        self.session_id = made.session_id
        return self.session_id

    async def ask(self, *content: Any) -> PromptResponse:
        blocks = [text_block(one) if isinstance(one, str) else one for one in content]
        return await self.connection.prompt(session_id=self.session_id, prompt=blocks)

    async def cancel(self) -> None:
        await self.connection.cancel(session_id=self.session_id)

    async def set_mode(self, mode: str) -> None:
        await self.connection.set_session_mode(session_id=self.session_id, mode_id=mode)

    async def load(self, session_id: str) -> Any:
        """Shows the conversation, and continues it."""
        self.session_id = session_id
        return await self.connection.load_session(
            cwd=str(self.project), session_id=session_id, mcp_servers=[]
        )

    async def send(self, method: str, **params: Any) -> Any:
        """A request that the SDK's client has no method for, and its raw answer."""
        return await self.connection._conn.send_request(method, params)

    def record(self) -> dict[str, Any]:
        """The session's file."""
        path = self.data_dir / "sessions" / f"{self.session_id}.json"
        read: dict[str, Any] = json.loads(path.read_text())
        return read


def endpoint_table(url: str, wire_api: str = "openai-chat", **more: Any) -> dict[str, Any]:
    named = {"name": "fake", "base_url": url, "wire_api": wire_api}
    return {"endpoints": [named | {"default_model": "fake-model"} | more]}


@contextlib.asynccontextmanager
async def agent_here(
    data_dir: Path, table: dict[str, Any], limit_bytes: int = LIMIT_BYTES
) -> AsyncIterator[socket.socket]:
    """The agent in this process: a new one starts in no time. Yields the editor's end of its
    socket, whose closing ends it."""
    theirs, ours = socket.socketpair()
    transport = EditorTransport(*await asyncio.open_connection(sock=theirs, limit=limit_bytes))
    agent = HelexaAgent(from_table(table, {}), data_dir)
    serving = asyncio.create_task(serve_over(transport, agent))
    yield ours
    await serving


@contextlib.asynccontextmanager
async def bridge_here(tmp_path: Path, table: dict[str, Any]) -> AsyncIterator[Bridge]:
    project, data_dir = tmp_path / "project", tmp_path / "data"
    project.mkdir(exist_ok=True)
    async with agent_here(data_dir, table) as ours:
        reader, writer = await asyncio.open_connection(sock=ours, limit=LIMIT_BYTES)
        editor = Editor()
        client: Any = editor
        connection = ClientSideConnection(client, writer, reader, use_unstable_protocol=True)
        try:
            yield Bridge(editor, connection, project, data_dir)
        finally:
            writer.close()
    await connection.close()


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    """Returns the environment of an agent's process, with nothing of the machine's own
    configuration."""
    kept = {name: os.environ[name] for name in ("PATH", "HELEXA_TEST_RUN") if name in os.environ}
    return {
        **kept,
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "PYTHONPATH": str(PACKAGE_DIR),
        **more,
    }


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_LIMIT_S):
        while not is_so():
            await asyncio.sleep(0.01)


def has_ended(pid: str) -> bool:
    try:
        return "zombie" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
