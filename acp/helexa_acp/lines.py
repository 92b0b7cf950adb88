"""JSON-RPC messages, one a line, with an editor or an MCP server.

Only valid messages get through: some malformed ones would end the SDK's own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from dataclasses import dataclass
from typing import Any

PARSE_ERROR, INVALID_REQUEST = -32700, -32600
log = logging.getLogger(__name__)


@dataclass
class MalformedError(Exception):
    """An invalid line. ``request_id`` is the request that the error answers."""

    code: int
    why: str
    request_id: int | str | None = None


class LineTransport:
    """The SDK's Transport. ``receive`` is for one task; ``send`` for any. An editor's invalid line
    is answered with an error; MCP servers print their logs among the messages."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool = True
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._answers = answers
        self._sending = asyncio.Lock()

    async def send(self, message: dict[str, Any]) -> None:
        """Sends a message, after those of earlier calls. It is written before this first waits,
        unless another is still being sent. Raises ConnectionError."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        async with self._sending:
            try:
                self._writer.write(line)
                await self._writer.drain()
            except (OSError, RuntimeError) as error:
                raise ConnectionError("the other end is gone") from error

    async def receive(self) -> dict[str, Any] | None:
        """``None`` at the end."""
        while (line := await self._line()) is not None:
            try:
                message = parse(line) if line.strip() else None
            except MalformedError as error:
                log.warning("a malformed message: %s", error.why)
                if self._answers:
                    await self._refuse(error)
                continue
            if message is not None:
                return message
        return None

    async def close(self) -> None:
        self._writer.close()

    async def _line(self) -> bytes | None:
        begun = b""
        while True:
            try:
                return begun + await self._reader.readuntil(b"\n")
            except ConnectionError:
                # A socket whose other end closed with unread data.
                return None
            except asyncio.IncompleteReadError as error:
                return begun + error.partial or None
            except asyncio.LimitOverrunError as error:
                begun += await self._reader.readexactly(error.consumed)

    async def _refuse(self, error: MalformedError) -> None:
        error_object = {"code": error.code, "message": error.why}
        with contextlib.suppress(ConnectionError):
            await self.send({"jsonrpc": "2.0", "id": error.request_id, "error": error_object})


def parse(line: bytes) -> dict[str, Any] | None:
    """A valid message; ``None``: an unusable answer. Raises MalformedError."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise MalformedError(PARSE_ERROR, "the line is no JSON") from None
    if not isinstance(message, dict):
        raise MalformedError(INVALID_REQUEST, "a message is an object")
    if "method" not in message:
        return _response(message)
    request_id = message.get("id")
    if isinstance(request_id, bool) or not isinstance(request_id, int | str | None):
        raise MalformedError(INVALID_REQUEST, "an id is a number or a string")
    if not isinstance(message["method"], str):
        raise MalformedError(INVALID_REQUEST, "a method is a string", request_id)
    params = message.get("params")
    if params is not None and not isinstance(params, dict):
        raise MalformedError(INVALID_REQUEST, "params are an object", request_id)
    # The SDK spreads _meta over the parameters, where it could take their place.
    return message | {"params": {k: v for k, v in (params or {}).items() if k != "_meta"}}


def _response(message: dict[str, Any]) -> dict[str, Any] | None:
    if not isinstance(message.get("id"), int) or isinstance(message["id"], bool):
        return None
    error = message.get("error")
    if "result" not in message and error is not None and not isinstance(error, dict):
        return {"id": message["id"], "error": {"message": str(error)}}
    return message
