"""Serves the agent over standard input and output, until the client disconnects.

Only valid messages reach the SDK: some malformed ones would end its own loop. An invalid line is
answered with a JSON-RPC error.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import stat
import sys
from collections.abc import Mapping
from typing import Any, cast

from acp.agent import AgentSideConnection
from acp.interfaces import Agent

from helexa_acp.agent import HelexaAgent
from helexa_acp.config import Config, data_dir
from helexa_acp.endpoints import Endpoints
from helexa_acp.errors import ConfigError
from helexa_acp.sessions import Sessions
from helexa_acp.store import SessionStore

BUFFER_BYTES = 64 * 1024 * 1024
"""Images are sent in lines."""
PARSE_ERROR, INVALID_REQUEST, INTERNAL_ERROR = -32700, -32600, -32603
OLD_METHODS = {"session/set_model": "_session/set_model"}
"""Methods that ACP had and clients still use, as extensions, which the SDK hands through."""
log = logging.getLogger(__name__)


class MalformedError(ValueError):
    """An invalid line. ``request_id`` is the request that the error answers."""

    def __init__(self, code: int, why: str, request_id: int | str | None = None) -> None:
        super().__init__(why)
        self.code = code
        self.request_id = request_id


class LineTransport:
    """The SDK's Transport. ``receive`` is for one task; ``send`` for any."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._sending = asyncio.Lock()

    async def send(self, message: dict[str, Any]) -> None:
        """Sends a message, after those of earlier calls. It is written before this first waits,
        unless another is still being sent. Raises ConnectionError."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        async with self._sending:
            try:
                self._writer.write(line)
                await self._writer.drain()
            except OSError as error:
                raise ConnectionError("the client is gone") from error

    async def receive(self) -> dict[str, Any] | None:
        while (line := await self._line()) is not None:
            try:
                message = parse(line) if line.strip() else None
            except MalformedError as error:
                log.warning("a malformed message: %s", error)
                await self._answer(error)
                continue
            if message is not None:
                return message
        return None

    async def close(self) -> None:
        self._writer.close()

    async def _line(self) -> bytes | None:
        """``None`` at the end."""
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

    async def _answer(self, error: MalformedError) -> None:
        error_object = {"code": error.code, "message": str(error)}
        try:
            await self.send({"jsonrpc": "2.0", "id": error.request_id, "error": error_object})
        except ConnectionError:
            log.info("the client is gone")


def parse(line: bytes) -> dict[str, Any] | None:
    """A message for the SDK; ``None``: an unusable answer. Raises MalformedError."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise MalformedError(PARSE_ERROR, "the line is no JSON") from None
    if not isinstance(message, dict):
        raise MalformedError(INVALID_REQUEST, "a message is an object")
    if "method" not in message:
        return _response(message)
    request_id = message.get("id")
    if request_id is not None and not _is_id(request_id):
        raise MalformedError(INVALID_REQUEST, "an id is a number or a string")
    if not isinstance(message["method"], str):
        raise MalformedError(INVALID_REQUEST, "a method is a string", request_id)
    params = message.get("params")
    if params is not None and not isinstance(params, dict):
        raise MalformedError(INVALID_REQUEST, "params are an object", request_id)
    method = OLD_METHODS.get(message["method"], message["method"])
    # The SDK spreads _meta over the parameters, where it could take their place.
    named = {key: value for key, value in (params or {}).items() if key != "_meta"}
    return message | {"method": method, "params": named}


def _response(message: dict[str, Any]) -> dict[str, Any] | None:
    if not isinstance(message.get("id"), int) or isinstance(message["id"], bool):
        return None
    error = message.get("error")
    if "result" in message or error is None:
        return {"jsonrpc": "2.0", "id": message["id"], "result": message.get("result")}
    code = error.get("code") if isinstance(error, dict) else None
    why = error.get("message") if isinstance(error, dict) else error
    error_object = {
        "code": code if isinstance(code, int) else INTERNAL_ERROR,
        "message": why if isinstance(why, str) else "the client answered with an error",
    }
    return {"jsonrpc": "2.0", "id": message["id"], "error": error_object}


def _is_id(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


async def serve(config: Config, environ: Mapping[str, str]) -> None:
    """Serves until the client closes its end, or a signal ends it. Raises ``ConfigError`` where no
    client can be connected."""
    transport = await open_transport()
    here = data_dir(environ)
    endpoints = Endpoints(config)
    sessions = Sessions(config, endpoints, SessionStore(here / "sessions"))
    agent = HelexaAgent(config, endpoints, sessions, here)
    connection = AgentSideConnection(
        # It has every method of Agent but fork_session, which it does not announce.
        cast(Agent, agent),
        transport,
        listening=False,
        use_unstable_protocol=True,
    )
    listening = asyncio.ensure_future(connection.listen())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, listening.cancel)
    try:
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await listening
    finally:
        await agent.close()
        await connection.close()


async def open_transport() -> LineTransport:
    """Reserves standard output for the protocol: other output goes to standard error. Raises
    ``ConfigError``."""
    for stream in (sys.stdin, sys.stdout):
        if not _can_be_waited_for(stream.fileno()):
            raise ConfigError(
                "an editor starts this and speaks ACP over its standard input and output, which "
                "have to be pipes; see helexa-acp --help."
            )
    loop = asyncio.get_running_loop()
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    reader = asyncio.StreamReader(limit=BUFFER_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.streams.FlowControlMixin(loop=loop), output
    )
    return LineTransport(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


def _can_be_waited_for(descriptor: int) -> bool:
    """Whether the descriptor is a pipe, a socket or a terminal, not a file or ``/dev/null``."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)
