"""An editor for tests, the SDK's client, which remembers the updates it got; and the agent beside
it, in this process over a socket, or as a process over pipes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acp import PROTOCOL_VERSION, RequestError, schema, text_block
from acp.client import ClientSideConnection

from helexa_acp.agent import EditorTransport, HelexaAgent, serve_over
from helexa_acp.calls import TOOLS
from helexa_acp.config import Config, from_table
from helexa_acp.editor import Editor as Port
from helexa_acp.history import text_of
from helexa_acp.tools import Outcome, Tool, ToolContext
from helexa_acp.tools.programs import end_group

BARE = schema.ClientCapabilities()
WITH_FILES = schema.ClientCapabilities(
    fs=schema.FileSystemCapabilities(read_text_file=True, write_text_file=True)
)
WITH_TERMINALS = schema.ClientCapabilities(terminal=True)


class Editor:
    """``unsaved`` are its buffers. A permission is answered by the next of ``permissions``, or
    waits until there is one."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.asked: list[Any] = []
        self.permissions: deque[str | None] = deque()
        self.is_asked = asyncio.Event()
        self.unsaved: dict[str, str] = {}
        self.terminals: dict[str, asyncio.subprocess.Process] = {}
        self.released: list[str] = []
        self.killed: list[str] = []

    def on_connect(self, conn: Any) -> None: ...

    # The updates it got.

    def updates_of(self, kind: str) -> list[Any]:
        return [one for one in self.updates if one.session_update == kind]

    def texts(self, kind: str = "agent_message_chunk") -> str:
        contents = [one.content for one in self.updates_of(kind)]
        return "".join(content.text for content in contents if content.type == "text")

    def statuses(self) -> dict[str, str]:
        last: dict[str, str] = {}
        for one in self.updates:
            if one.session_update in ("tool_call", "tool_call_update") and one.status:
                last[one.tool_call_id] = one.status
        return last

    # What it is asked.

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **_: Any
    ) -> Any:
        self.asked.append((tool_call, options))
        self.is_asked.set()
        while not self.permissions:
            await asyncio.sleep(0.01)
        chosen = self.permissions.popleft()
        outcome: Any = schema.DeniedOutcome(outcome="cancelled")
        if chosen is not None:
            outcome = schema.AllowedOutcome(outcome="selected", option_id=chosen)
        return schema.RequestPermissionResponse(outcome=outcome)

    async def read_text_file(self, path: str, **_: Any) -> Any:
        if path in self.unsaved:
            return schema.ReadTextFileResponse(content=self.unsaved[path])
        raise RequestError(-32002, "not open here")

    async def write_text_file(self, path: str, content: str, **_: Any) -> Any:
        self.unsaved[path] = content
        await asyncio.to_thread(Path(path).write_text, content)
        return schema.WriteTextFileResponse()

    async def create_terminal(
        self, command: str, args: list[str] | None = None, cwd: str | None = None, **_: Any
    ) -> Any:
        process = await asyncio.create_subprocess_exec(
            command,
            *(args or ()),
            cwd=cwd,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        terminal_id = f"terminal-{len(self.terminals)}"
        self.terminals[terminal_id] = process
        return schema.CreateTerminalResponse(terminal_id=terminal_id)

    async def wait_for_terminal_exit(self, terminal_id: str, **_: Any) -> Any:
        code = await self.terminals[terminal_id].wait()
        return schema.WaitForTerminalExitResponse(exit_code=max(code, 0))

    async def terminal_output(self, terminal_id: str, **_: Any) -> Any:
        process = self.terminals[terminal_id]
        assert process.stdout is not None
        output = (await process.stdout.read()).decode()
        status = schema.TerminalExitStatus(exit_code=process.returncode)
        return schema.TerminalOutputResponse(output=output, truncated=False, exit_status=status)

    async def kill_terminal(self, terminal_id: str, **_: Any) -> Any:
        self.killed.append(terminal_id)
        if self.terminals[terminal_id].returncode is None:
            self.terminals[terminal_id].kill()
        return schema.KillTerminalResponse()

    async def release_terminal(self, terminal_id: str, **_: Any) -> Any:
        self.released.append(terminal_id)
        # What still runs in a terminal that is released is ended, as the protocol has it.
        await end_group(self.terminals[terminal_id])
        return schema.ReleaseTerminalResponse()


CONFIG = from_table({"endpoints": [{"name": "x", "base_url": "http://x"}]}, {})


@dataclass
class Workshop:
    """One tool call at a time, as a session makes it."""

    cwd: Path
    editor: Editor = field(default_factory=Editor)
    capabilities: schema.ClientCapabilities = field(default_factory=schema.ClientCapabilities)
    config: Config = CONFIG
    shown: list[Any] = field(default_factory=list)
    tools: tuple[Tool, ...] = TOOLS

    async def run(self, name: str, **arguments: Any) -> Outcome:
        async def show(contents: list[Any]) -> None:
            self.shown += contents

        client: Any = self.editor
        port = Port(client, self.capabilities, "s")
        (tool,) = (one for one in self.tools if one.spec.name == name)
        context = ToolContext(port, self.cwd, self.config, show)
        return await (await tool.prepare(context, arguments)).run()

    async def text(self, name: str, **arguments: Any) -> str:
        return text_of((await self.run(name, **arguments)).parts)


PACKAGE_DIR = Path(__file__).resolve().parent.parent.parent / "acp"
LIMIT_BYTES = 2**26
WAIT_LIMIT_S = 60.0


@dataclass(slots=True)
class Bridge:
    editor: Editor
    connection: ClientSideConnection
    project: Path
    data_dir: Path
    session_id: str = ""

    async def open(self, capabilities: schema.ClientCapabilities = BARE, **named: Any) -> str:
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

    async def ask(self, *content: Any) -> schema.PromptResponse:
        blocks = [text_block(one) if isinstance(one, str) else one for one in content]
        return await self.connection.prompt(session_id=self.session_id, prompt=blocks)

    async def cancel(self) -> None:
        await self.connection.cancel(session_id=self.session_id)

    async def set_mode(self, mode: str) -> None:
        await self.connection.set_session_mode(session_id=self.session_id, mode_id=mode)

    async def load(self, session_id: str) -> Any:
        self.session_id = session_id
        return await self.connection.load_session(
            cwd=str(self.project), session_id=session_id, mcp_servers=[]
        )

    async def send(self, method: str, **params: Any) -> Any:
        """A request that the SDK's client has no method for, and its raw answer."""
        return await self.connection._conn.send_request(method, params)

    def record(self) -> dict[str, Any]:
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
