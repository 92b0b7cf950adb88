"""Programs that the bridge runs itself: their output, their time limit and their end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from helexa_acp.errors import ToolError

OUTPUT_LIMIT_BYTES = 128 * 1024
"""The most output of a command that is kept, which is more than a model can use."""
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
    """Keeps the end of the output, and one byte more where there was more. Reads a pipe of our
    own: asyncio's ``wait`` would wait for the end of its pipes."""
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
    """Ends the program and its group, gently first. Processes outside the group that hold its pipes
    are not waited for."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_AFTER_S):
                await process.wait()
