"""One agent, connected to standard input and output, for as long as the client is there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import sys
from collections.abc import Mapping
from typing import cast

from acp.agent import AgentSideConnection
from acp.interfaces import Agent

from helexa_acp.agent import HelexaAgent
from helexa_acp.config import Config, data_dir
from helexa_acp.conversation.store import SessionStore
from helexa_acp.endpoints import Endpoints
from helexa_acp.errors import ConfigError
from helexa_acp.service import Sessions
from helexa_acp.transport import MAX_LINE_BYTES, LineTransport


async def serve(config: Config, environ: Mapping[str, str]) -> None:
    """Serves until the client closes its end, or a signal ends it. Raises ``ConfigError`` where
    no client can be at the other end."""
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
    """Takes standard output for the protocol alone: what anything else prints goes to standard
    error. Raises ``ConfigError``."""
    for stream in (sys.stdin, sys.stdout):
        if not _can_be_waited_for(stream.fileno()):
            raise ConfigError(
                "an editor starts this and speaks ACP over its standard input and output, which "
                "have to be pipes; see helexa-acp --help."
            )
    loop = asyncio.get_running_loop()
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.streams.FlowControlMixin(loop=loop), output
    )
    return LineTransport(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


def _can_be_waited_for(descriptor: int) -> bool:
    """Whether the descriptor is a pipe, a socket or a terminal, not a file or ``/dev/null``."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)
