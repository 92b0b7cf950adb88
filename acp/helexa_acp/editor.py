"""The editor of one session: updates to it, requests to it, and its capabilities."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acp import RequestError
from acp.interfaces import Client
from acp.schema import ClientCapabilities, PermissionOption, ToolCallUpdate

from helexa_acp.errors import ToolError

OUTPUT_LIMIT_BYTES = 128 * 1024
"""The most output of a command that is kept, which is more than a model can use."""


@dataclass(frozen=True, slots=True)
class Exit:
    """The exit code and the signal are None where they are unknown."""

    code: int | None = None
    signal: str | None = None


@dataclass(frozen=True, slots=True)
class CommandOutput:
    text: str
    is_truncated: bool
    exit: Exit


@dataclass(frozen=True, slots=True)
class ClientPort:
    client: Client
    capabilities: ClientCapabilities
    session_id: str

    async def update(self, update: Any) -> None:
        await self.client.session_update(session_id=self.session_id, update=update)

    async def ask(self, call: ToolCallUpdate, options: list[PermissionOption]) -> str | None:
        """The id of the chosen option; ``None``: none. A client that cannot ask has refused."""
        try:
            response = await self.client.request_permission(
                session_id=self.session_id, tool_call=call, options=options
            )
        except (RequestError, ValueError):
            return None
        return getattr(response.outcome, "option_id", None)

    @property
    def reads_files(self) -> bool:
        return bool(self.capabilities.fs and self.capabilities.fs.read_text_file)

    @property
    def writes_files(self) -> bool:
        return bool(self.capabilities.fs and self.capabilities.fs.write_text_file)

    @property
    def has_terminals(self) -> bool:
        return bool(self.capabilities.terminal)

    async def read_text(self, path: Path) -> str:
        """The editor's text, unsaved changes included. Raises ToolError."""
        with _failing_as("the editor"):
            response = await self.client.read_text_file(session_id=self.session_id, path=str(path))
        return response.content

    async def write_text(self, path: Path, content: str) -> None:
        with _failing_as(f"the editor did not write {path}"):
            await self.client.write_text_file(
                session_id=self.session_id, path=str(path), content=content
            )

    async def open_terminal(self, command: str, cwd: Path) -> str:
        with _failing_as("the editor opened no terminal"):
            response = await self.client.create_terminal(
                session_id=self.session_id,
                command="sh",
                args=["-c", command],
                cwd=str(cwd),
                output_byte_limit=OUTPUT_LIMIT_BYTES,
            )
        return response.terminal_id

    async def wait_for_exit(self, terminal_id: str) -> Exit:
        with _failing_as("the editor lost the terminal"):
            response = await self.client.wait_for_terminal_exit(
                session_id=self.session_id, terminal_id=terminal_id
            )
        return Exit(response.exit_code, response.signal)

    async def kill_terminal(self, terminal_id: str) -> None:
        with _failing_as("the editor did not end the command"):
            await self.client.kill_terminal(session_id=self.session_id, terminal_id=terminal_id)

    async def release_terminal(self, terminal_id: str) -> None:
        await self.client.release_terminal(session_id=self.session_id, terminal_id=terminal_id)

    async def terminal_output(self, terminal_id: str, ended: Exit) -> CommandOutput:
        """``ended`` is the result of waiting for it, for editors that report it there alone."""
        with _failing_as("the editor sent no output"):
            response = await self.client.terminal_output(
                session_id=self.session_id, terminal_id=terminal_id
            )
        status = response.exit_status
        return CommandOutput(
            text=response.output,
            is_truncated=response.truncated,
            exit=Exit(status.exit_code, status.signal) if status else ended,
        )


@contextlib.contextmanager
def _failing_as(what: str) -> Iterator[None]:
    """Converts a refusal or an invalid answer of the editor to a ToolError."""
    try:
        yield
    except (RequestError, ValueError) as error:
        raise ToolError(f"{what}: {error}") from None
