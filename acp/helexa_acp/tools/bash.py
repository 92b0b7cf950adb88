"""bash: a command through ``sh -c``, in the editor's terminal where it has one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

from acp import tool_terminal_ref

from helexa_acp.editor import OUTPUT_LIMIT_BYTES, CommandOutput, Exit
from helexa_acp.errors import ToolError
from helexa_acp.modes import Action
from helexa_acp.tools.base import (
    Arguments,
    Outcome,
    Preview,
    Tool,
    ToolContext,
    schema,
    take_optional_text,
    take_path,
    take_text,
    text_outcome,
)
from helexa_acp.wire import ToolSpec

READ_BYTES = 64 * 1024
KILL_AFTER_S = 2.0
LAST_OUTPUT_S = 1.0


@dataclass(slots=True)
class _Tail:
    """The last ``OUTPUT_LIMIT_BYTES`` of the output."""

    data: bytearray = field(default_factory=bytearray)
    is_truncated: bool = False

    def add(self, chunk: bytes) -> None:
        self.data += chunk
        if len(self.data) > OUTPUT_LIMIT_BYTES:
            del self.data[:-OUTPUT_LIMIT_BYTES]
            self.is_truncated = True


async def run_locally(
    command: list[str], cwd: Path, timeout_s: float
) -> tuple[CommandOutput, bool]:
    """Returns the output, and whether it timed out. A cancellation ends the program and its
    children. Raises ToolError."""
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
    tail, is_late = _Tail(), False
    reading = asyncio.create_task(_read(reader, tail))
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
        text=tail.data.decode("utf-8", "replace"),
        is_truncated=tail.is_truncated,
        exit=Exit(code) if code >= 0 else Exit(signal=signal.Signals(-code).name),
    )
    return output, is_late


async def _read(descriptor: int, tail: _Tail) -> None:
    """Reads a pipe of our own: asyncio's ``wait`` would wait for the end of its pipes."""
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(descriptor, "rb", 0)
    )
    try:
        while chunk := await stream.read(READ_BYTES):
            tail.add(chunk)
    finally:
        transport.close()


async def end_group(process: asyncio.subprocess.Process) -> None:
    """Ends the program and its group, gently first. Processes outside the group that hold its pipes
    are not waited for."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal_group(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_AFTER_S):
                await process.wait()


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


async def preview(context: ToolContext, arguments: Arguments) -> Preview:
    command, cwd = _command(context, arguments)
    where = "" if cwd == context.cwd else f" (in {cwd})"
    return Preview(
        f"`{command}`{where}",
        remembers=f"bash {cwd} {command}",
        remembered_as="Always allow this very command, this session",
    )


async def run(context: ToolContext, arguments: Arguments) -> Outcome:
    command, cwd = _command(context, arguments)
    if context.port.has_terminals:
        return await _in_terminal(context, command, cwd)
    timeout_s = context.config.bash_timeout_s
    output, is_late = await run_locally(["sh", "-c", command], cwd, timeout_s)
    return text_outcome(
        described(output, timeout_s if is_late else None), is_error=output.exit.code != 0
    )


async def _in_terminal(context: ToolContext, command: str, cwd: Path) -> Outcome:
    """The terminal is always released, which also ends its processes."""
    port, timeout_s = context.port, context.config.bash_timeout_s
    terminal_id = await port.open_terminal(command, cwd)
    shown = tool_terminal_ref(terminal_id)
    try:
        await context.show([shown])
        is_late, ended = False, Exit()
        try:
            async with asyncio.timeout(timeout_s):
                ended = await port.wait_for_exit(terminal_id)
        except TimeoutError:
            is_late = True
            await port.kill_terminal(terminal_id)
        output = await port.terminal_output(terminal_id, ended)
    except asyncio.CancelledError:
        with contextlib.suppress(ToolError):
            await port.kill_terminal(terminal_id)
        raise
    finally:
        await _release(context, terminal_id)
    text = described(output, timeout_s if is_late else None)
    return text_outcome(text, shown, is_error=output.exit.code != 0)


async def _release(context: ToolContext, terminal_id: str) -> None:
    """Best effort: a disconnected editor has no terminals."""
    with contextlib.suppress(Exception):
        await context.port.release_terminal(terminal_id)


def described(output: CommandOutput, late_after_s: float | None) -> str:
    """The model's text: the output, and the exit status."""
    notes = []
    if output.is_truncated:
        notes.append("the beginning of the output was left out")
    if late_after_s is not None:
        notes.append(f"ended after {late_after_s:g} s")
    elif output.exit.signal:
        notes.append(f"ended by signal {output.exit.signal}")
    elif output.exit.code:
        notes.append(f"exit code {output.exit.code}")
    elif not output.text:
        notes.append("no output")
    note = f"[{'; '.join(notes)}]" if notes else ""
    return "\n".join(part for part in (output.text.rstrip("\n"), note) if part)


def _command(context: ToolContext, arguments: Arguments) -> tuple[str, Path]:
    command = take_text(arguments, "command")
    if not command.strip() or "\0" in command:
        raise ToolError("the command is empty or holds a NUL character")
    if take_optional_text(arguments, "cwd") is None:
        return command, context.cwd
    return command, take_path(arguments, "cwd", context.cwd)


TOOL = Tool(
    ToolSpec(
        name="bash",
        description="Runs a command with sh -c and returns what it printed. It has no input.",
        parameters=schema(
            {
                "command": {"type": "string", "description": "The command line."},
                "cwd": {"type": "string", "description": "Where to run it, if elsewhere."},
            },
            "command",
        ),
    ),
    "execute",
    Action.EXECUTE,
    preview,
    run,
)
