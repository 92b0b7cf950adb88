"""Serves the agent over standard input and output, until the client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
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
from helexa_acp.errors import ConfigError
from helexa_acp.lines import LineTransport

BUFFER_BYTES = 64 * 1024 * 1024
"""Images are sent in lines."""
OLD_METHODS = {"session/set_model": "_session/set_model"}
"""Methods that ACP had and clients still use, as extensions, which the SDK hands through."""


class EditorTransport(LineTransport):
    async def receive(self) -> dict[str, Any] | None:
        message = await super().receive()
        if message is not None and message.get("method") in OLD_METHODS:
            message["method"] = OLD_METHODS[message["method"]]
        return message


async def serve(config: Config, environ: Mapping[str, str]) -> None:
    """Serves until the client closes its end, or a signal ends it. Raises ``ConfigError`` where no
    client can be connected."""
    transport = await open_transport()
    serving = asyncio.create_task(serve_over(transport, HelexaAgent(config, data_dir(environ))))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    await serving


async def serve_over(transport: LineTransport, agent: HelexaAgent) -> None:
    # It has every method of Agent but fork_session, which it does not announce.
    connection = AgentSideConnection(
        cast(Agent, agent), transport, listening=False, use_unstable_protocol=True
    )
    try:
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await connection.listen()
            await asyncio.sleep(0)  # the last request is answered if it waits for nothing
    finally:
        await agent.close()
        await connection.close()


async def open_transport() -> EditorTransport:
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
    return EditorTransport(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


def _can_be_waited_for(descriptor: int) -> bool:
    """Whether the descriptor is a pipe, a socket or a terminal, not a file or ``/dev/null``."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)
