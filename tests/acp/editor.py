"""An editor for tests: the SDK's client, which remembers the updates it got."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acp import RequestError
from acp.schema import (
    AllowedOutcome,
    ClientCapabilities,
    CreateTerminalResponse,
    DeniedOutcome,
    FileSystemCapabilities,
    KillTerminalResponse,
    ReadTextFileResponse,
    ReleaseTerminalResponse,
    RequestPermissionResponse,
    TerminalExitStatus,
    TerminalOutputResponse,
    WaitForTerminalExitResponse,
    WriteTextFileResponse,
)

from helexa_acp.config import Config, from_table
from helexa_acp.editor import Editor as Port
from helexa_acp.history import text_of
from helexa_acp.processes import end_group
from helexa_acp.tools import TOOLS
from helexa_acp.tools.base import Outcome, Tool, ToolContext

BARE = ClientCapabilities()
WITH_FILES = ClientCapabilities(
    fs=FileSystemCapabilities(read_text_file=True, write_text_file=True)
)
WITH_TERMINALS = ClientCapabilities(terminal=True)


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
        """The last one of each call."""
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
    ) -> RequestPermissionResponse:
        self.asked.append((tool_call, options))
        self.is_asked.set()
        while not self.permissions:
            await asyncio.sleep(0.01)
        chosen = self.permissions.popleft()
        if chosen is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        outcome = AllowedOutcome(outcome="selected", option_id=chosen)
        return RequestPermissionResponse(outcome=outcome)

    async def read_text_file(self, path: str, **_: Any) -> ReadTextFileResponse:
        if path in self.unsaved:
            return ReadTextFileResponse(content=self.unsaved[path])
        raise RequestError(-32002, "not open here")

    async def write_text_file(self, path: str, content: str, **_: Any) -> WriteTextFileResponse:
        self.unsaved[path] = content
        await asyncio.to_thread(Path(path).write_text, content)
        return WriteTextFileResponse()

    async def create_terminal(
        self, command: str, args: list[str] | None = None, cwd: str | None = None, **_: Any
    ) -> CreateTerminalResponse:
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
        return CreateTerminalResponse(terminal_id=terminal_id)

    async def wait_for_terminal_exit(
        self, terminal_id: str, **_: Any
    ) -> WaitForTerminalExitResponse:
        code = await self.terminals[terminal_id].wait()
        return WaitForTerminalExitResponse(exit_code=max(code, 0))

    async def terminal_output(self, terminal_id: str, **_: Any) -> TerminalOutputResponse:
        process = self.terminals[terminal_id]
        assert process.stdout is not None
        output = (await process.stdout.read()).decode()
        status = TerminalExitStatus(exit_code=process.returncode)
        return TerminalOutputResponse(output=output, truncated=False, exit_status=status)

    async def kill_terminal(self, terminal_id: str, **_: Any) -> KillTerminalResponse:
        self.killed.append(terminal_id)
        if self.terminals[terminal_id].returncode is None:
            self.terminals[terminal_id].kill()
        return KillTerminalResponse()

    async def release_terminal(self, terminal_id: str, **_: Any) -> ReleaseTerminalResponse:
        self.released.append(terminal_id)
        # What still runs in a terminal that is released is ended, as the protocol has it.
        await end_group(self.terminals[terminal_id])
        return ReleaseTerminalResponse()


CONFIG = from_table({"endpoints": [{"name": "x", "base_url": "http://x"}]}, {})


@dataclass
class Workshop:
    """One tool call at a time, as a session makes it."""

    cwd: Path
    editor: Editor = field(default_factory=Editor)
    capabilities: ClientCapabilities = field(default_factory=ClientCapabilities)
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
