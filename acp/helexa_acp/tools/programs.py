"""bash and search: programs that run by ``sh -c``, in the editor's terminal where it has one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from acp import tool_terminal_ref
from msgspec import Meta, Struct

from helexa_acp.editor import expect
from helexa_acp.errors import ToolError
from helexa_acp.tools import (
    Action,
    Outcome,
    Prepared,
    ToolContext,
    absolute,
    text_outcome,
    tool,
)

MAX_SEARCH_S = 30.0
SEARCH_PROGRAM = str(Path(__file__).with_name("searching.py"))
OUTPUT_LIMIT_BYTES = 128 * 1024
"""More than a model can use."""
READ_BYTES = 64 * 1024
KILL_AFTER_S = 2.0
LAST_OUTPUT_S = 1.0


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """The exit code and the signal are None where they are unknown."""

    text: str
    is_truncated: bool
    code: int | None = None
    signal: str | None = None


async def run_locally(
    command: list[str], cwd: Path, timeout_s: float
) -> tuple[CommandOutput, bool]:
    """Returns whether it timed out. A cancellation ends its children too. Raises ToolError."""
    reader, writer = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=writer,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        os.close(reader)
        raise ToolError(f"the command did not start: {error}") from None
    finally:
        os.close(writer)
    data, is_late = bytearray(), False
    reading = asyncio.create_task(_read(reader, data))
    try:
        async with asyncio.timeout(timeout_s):
            await process.wait()
        # Output from before the exit is in the pipe already; a background process of the program
        # may hold the pipe open without end.
        await asyncio.wait([reading], timeout=LAST_OUTPUT_S)
    except TimeoutError:
        is_late = True
    finally:
        await end_group(process)
        reading.cancel()
        await asyncio.wait([reading])
    code = process.returncode or 0
    output = CommandOutput(
        text=data[-OUTPUT_LIMIT_BYTES:].decode("utf-8", "replace"),
        is_truncated=len(data) > OUTPUT_LIMIT_BYTES,
        code=code if code >= 0 else None,
        signal=signal.Signals(-code).name if code < 0 else None,
    )
    return output, is_late


async def _read(descriptor: int, data: bytearray) -> None:
    """asyncio's ``wait`` would wait for the end of its own pipes, so this pipe is ours."""
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(descriptor, "rb", 0)
    )
    try:
        while chunk := await stream.read(READ_BYTES):
            data += chunk
            del data[: -OUTPUT_LIMIT_BYTES - 1]
    finally:
        transport.close()


async def end_group(process: asyncio.subprocess.Process) -> None:
    """Processes outside the group that hold its pipes are not waited for."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_AFTER_S):
                await process.wait()


class Bash(Struct):
    """Runs a command with sh -c and returns what it printed. It has no input."""

    command: Annotated[str, Meta(description="The command line.")]
    cwd: Annotated[str, Meta(description="Where to run it, if elsewhere.")] = "."


async def bash(context: ToolContext, given: Bash) -> Prepared:
    command, cwd = given.command, absolute(given.cwd, context.cwd)
    if not command.strip() or "\0" in command:
        raise ToolError("the command is empty or holds a NUL character")

    async def run() -> Outcome:
        if context.editor.capabilities.terminal:
            return await _in_terminal(context, command, cwd)
        timeout_s = context.config.bash_timeout_s
        output, is_late = await run_locally(["sh", "-c", command], cwd, timeout_s)
        return text_outcome(
            described(output, timeout_s if is_late else None), is_error=output.code != 0
        )

    where = "" if cwd == context.cwd else f" (in {cwd})"
    return Prepared(
        f"`{command}`{where}",
        run,
        remembers=f"bash {cwd} {command}",
        remembered_as="Always allow this very command, this session",
    )


async def _in_terminal(context: ToolContext, command: str, cwd: Path) -> Outcome:
    """Releasing the terminal also ends its processes."""
    client, session_id = context.editor.client, context.editor.session_id
    opening = client.create_terminal(
        session_id=session_id,
        command="sh",
        args=["-c", command],
        cwd=str(cwd),
        output_byte_limit=OUTPUT_LIMIT_BYTES,
    )
    terminal = (await expect(opening, "the editor opened no terminal")).terminal_id
    shown = tool_terminal_ref(terminal)
    named = {"session_id": session_id, "terminal_id": terminal}
    timeout_s = context.config.bash_timeout_s
    ended, late_after_s = None, None
    try:
        await context.show([shown])
        try:
            async with asyncio.timeout(timeout_s):
                waiting = client.wait_for_terminal_exit(**named)
                ended = await expect(waiting, "the editor lost the terminal")
        except TimeoutError:
            late_after_s = timeout_s
            await expect(client.kill_terminal(**named), "the editor did not end the command")
        response = await expect(client.terminal_output(**named), "the editor sent no output")
    except asyncio.CancelledError:
        with contextlib.suppress(ToolError):
            await expect(client.kill_terminal(**named), "the editor did not end the command")
        raise
    finally:
        with contextlib.suppress(Exception):  # a disconnected editor has no terminals
            await client.release_terminal(**named)
    status = response.exit_status or ended  # some editors report it in one place alone
    output = CommandOutput(
        response.output,
        response.truncated,
        status.exit_code if status else None,
        status.signal if status else None,
    )
    text = described(output, late_after_s)
    return text_outcome(text, shown, is_error=output.code != 0)


def described(output: CommandOutput, late_after_s: float | None) -> str:
    notes = []
    if output.is_truncated:
        notes.append("the beginning of the output was left out")
    if late_after_s is not None:
        notes.append(f"ended after {late_after_s:g} s")
    elif output.signal:
        notes.append(f"ended by signal {output.signal}")
    elif output.code:
        notes.append(f"exit code {output.code}")
    elif not output.text:
        notes.append("no output")
    note = f"[{'; '.join(notes)}]" if notes else ""
    return "\n".join(part for part in (output.text.rstrip("\n"), note) if part)


class Search(Struct):
    """Finds the lines that match a regular expression, in all text files of a folder or in one
    file. Leaves out what git ignores."""

    pattern: Annotated[str, Meta(description="A Python regular expression.")]
    path: Annotated[str, Meta(description="Where to look, if not everywhere.")] = "."
    glob: Annotated[str, Meta(description="Only files of such names, as *.py.")] = ""
    ignore_case: bool = False


async def search(context: ToolContext, given: Search) -> Prepared:
    folder = absolute(given.path, context.cwd)

    async def run() -> Outcome:
        if not folder.exists():
            raise ToolError(f"{folder} is not there")
        asked = [given.pattern, str(folder), given.glob, given.ignore_case]
        command = [sys.executable, "-I", SEARCH_PROGRAM, json.dumps(asked)]
        output, is_late = await run_locally(command, context.cwd, MAX_SEARCH_S)
        if is_late:
            raise ToolError(
                f"the search took over {MAX_SEARCH_S:g} s; narrow the pattern or the path"
            )
        if output.code != 0:
            raise ToolError(output.text.strip() or "the search failed")
        return text_outcome(output.text.rstrip("\n") or "[no line matches]")

    return Prepared(f"Search for `{given.pattern}` in {folder}", run, (folder,))


BASH = tool("bash", "execute", Action.EXECUTE, Bash, bash)
SEARCH = tool("search", "search", Action.READ, Search, search)
