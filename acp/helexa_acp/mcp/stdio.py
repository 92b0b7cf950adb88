"""An MCP server as a process of ours: one JSON message a line, both ways."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helexa_acp.errors import McpError
from helexa_acp.mcp.messages import notification, reply_to, request, result_of
from helexa_acp.tools.process import end_group

LINE_LIMIT_BYTES = 32 * 1024 * 1024
log = logging.getLogger(__name__)


class StdioTransport:
    """``open`` starts the process. Waiting callers get an error when it ends."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next_id = 1
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(
        cls, command: str, arguments: list[str], environment: Mapping[str, str], cwd: Path
    ) -> StdioTransport:
        """Raises McpError. What it writes to its standard error goes where ours goes."""
        try:
            process = await asyncio.create_subprocess_exec(
                command,
                *arguments,
                cwd=cwd,
                env={**os.environ, **environment},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LINE_LIMIT_BYTES,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise McpError(f"it did not start: {error}") from None
        return cls(process)

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if self._reading.done():
            raise McpError("it has ended")
        request_id, self._next_id = self._next_id, self._next_id + 1
        future = asyncio.get_running_loop().create_future()
        self._pending[request_id] = future
        try:
            await self._send(request(request_id, method, params))
            return result_of(await future)
        except asyncio.CancelledError:
            gone = {"requestId": request_id, "reason": "the user cancelled"}
            with contextlib.suppress(McpError):
                self._write(notification("notifications/cancelled", gone))
            raise
        finally:
            self._pending.pop(request_id, None)

    async def notify(self, method: str) -> None:
        await self._send(notification(method))

    async def close(self) -> None:
        """Gently: its input ends first, then it gets SIGTERM, then SIGKILL."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._process.wait()
        await end_group(self._process)
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    def _write(self, message: dict[str, Any]) -> None:
        if self._process.stdin is None or self._process.stdin.is_closing():
            raise McpError("it has ended")
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _send(self, message: dict[str, Any]) -> None:
        self._write(message)
        assert self._process.stdin is not None
        try:
            await self._process.stdin.drain()
        except OSError as error:
            raise McpError(f"it takes no more input: {error}") from None

    async def _read(self) -> None:
        why = "it has ended"
        try:
            await self._read_lines()
        except ValueError:
            why = f"it wrote a line of more than {LINE_LIMIT_BYTES} bytes"
        except (OSError, McpError) as error:
            why = str(error)
        finally:
            for future in self._pending.values():
                if not future.done():
                    future.set_exception(McpError(why))

    async def _read_lines(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                log.warning("an MCP server wrote a line that is no JSON")
                continue
            if not isinstance(message, dict):
                continue
            if "method" in message:
                if answer := reply_to(message):
                    await self._send(answer)
                continue
            answered = message.get("id")
            future = self._pending.get(answered) if isinstance(answered, int) else None
            if future is not None and not future.done():
                future.set_result(message)
