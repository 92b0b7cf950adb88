"""Runs a program on this machine, bounded in output and time, and leaves nothing of it behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from pathlib import Path

from helexa_acp.client_port import OUTPUT_LIMIT_BYTES, CommandOutput, Exit
from helexa_acp.errors import ToolError

READ_BYTES = 64 * 1024
KILL_AFTER_S = 2.0
LAST_OUTPUT_S = 1.0


class _Tail:
    """The last ``OUTPUT_LIMIT_BYTES`` of the output."""

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._num_bytes = 0
        self.is_truncated = False

    def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._num_bytes += len(chunk)
        while self._num_bytes - len(self._chunks[0]) >= OUTPUT_LIMIT_BYTES:
            self._num_bytes -= len(self._chunks.popleft())
            self.is_truncated = True

    def text(self) -> str:
        data = b"".join(self._chunks)
        if len(data) > OUTPUT_LIMIT_BYTES:
            data, self.is_truncated = data[-OUTPUT_LIMIT_BYTES:], True
        return data.decode("utf-8", "replace")


async def run_locally(
    command: list[str], cwd: Path, timeout_s: float
) -> tuple[CommandOutput, bool]:
    """What it printed, and whether it had to be ended for taking too long. Cancelled, it ends the
    program and what that started. Raises ToolError."""
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
        # Output printed before the exit is in the pipe already; a background process of the program
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
        text=tail.text(),
        is_truncated=tail.is_truncated,
        exit=Exit(code) if code >= 0 else Exit(signal=signal.Signals(-code).name),
    )
    return output, is_late


async def _read(descriptor: int, tail: _Tail) -> None:
    """Reads a pipe of our own: asyncio's ``wait`` waits for the end of pipes that it knows."""
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
    """Ends the program and all that it started, gently first. What left its group and holds its
    pipes is not waited for."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal_group(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_AFTER_S):
                await process.wait()


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
