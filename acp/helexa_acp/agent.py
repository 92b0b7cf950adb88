"""ACP's methods over standard input and output. Errors become JSON-RPC errors here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import stat
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from acp import PROTOCOL_VERSION, RequestError
from acp.agent import AgentSideConnection
from acp.interfaces import Agent, Client
from acp.schema import ClientCapabilities, Implementation, PromptResponse

from helexa_acp import __version__, updates
from helexa_acp.calls import TOOLS
from helexa_acp.config import Config, data_dir, parse_selector
from helexa_acp.editor import Editor
from helexa_acp.errors import BridgeError, ConfigError, EndpointError, StoreError
from helexa_acp.mcp import ServerSpec, checked_specs
from helexa_acp.prompting import available_commands, choose_mode, run_prompt
from helexa_acp.sessions import (
    Home,
    Session,
    SessionStore,
    new_session,
    stored_session,
)
from helexa_acp.transports import LineTransport
from helexa_acp.wire.endpoints import Endpoints

SESSIONS_PER_PAGE = 100
SHOWN_MODELS = 10
LIST_WAIT_S = 0.25
LATE_LIST_WAIT_S = 60.0
INVALID_PARAMS, INTERNAL_ERROR = -32602, -32603
Opener = Callable[[Home, Editor, str, Sequence[ServerSpec]], Awaitable[Session]]
BUFFER_BYTES = 64 * 1024 * 1024
"""Images are sent in lines."""
SET_MODEL = "session/set_model"
"""ACP had it before config options, and clients still send it."""
log = logging.getLogger(__name__)


class HelexaAgent:
    """Call ``close`` when the client has disconnected."""

    def __init__(self, config: Config, data_dir: Path) -> None:
        store = SessionStore(data_dir / "sessions")
        self._home = Home(config, Endpoints(config), store, data_dir)
        self._sessions: dict[str, Session] = {}
        self._client: Client | None = None
        self._capabilities = ClientCapabilities()
        self._background: set[asyncio.Task[None]] = set()

    def on_connect(self, conn: Client) -> None:
        self._client = conn

    async def close(self) -> None:
        for task in self._background:
            task.cancel()
        closing = [session.close() for session in self._sessions.values()]
        await asyncio.gather(*closing, return_exceptions=True)
        await self._home.endpoints.close()

    async def initialize(
        self,
        protocol_version: int,
        client_capabilities: ClientCapabilities | None = None,
        client_info: Implementation | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        self._capabilities = client_capabilities or ClientCapabilities()
        self._home.endpoints.begin_listing(self._home.config.default)
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentInfo": {"name": "helexa-acp", "title": "helexa", "version": __version__},
            "authMethods": [],
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
                "mcpCapabilities": {"http": True, "sse": False},
                "sessionCapabilities": {"list": {}, "resume": {}, "close": {}},
            },
        }

    async def authenticate(self, method_id: str, **_: Any) -> dict[str, Any]:
        """Keys are in the configuration; the editor has nothing to do."""
        return {}

    async def new_session(
        self, cwd: str, mcp_servers: Sequence[Any] | None = None, **_: Any
    ) -> dict[str, Any]:
        session = await self._open(new_session, f"hxa-{uuid.uuid4()}", cwd, mcp_servers)
        return {"sessionId": session.record.session_id, **updates.opened(session)}

    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: Sequence[Any] | None = None, **_: Any
    ) -> dict[str, Any]:
        session = await self._open(stored_session, session_id, cwd, mcp_servers)
        for update in updates.replayed(session.record.history, TOOLS):
            await session.editor.update(update)
        return updates.opened(session)

    async def resume_session(
        self, session_id: str, cwd: str, mcp_servers: Sequence[Any] | None = None, **_: Any
    ) -> dict[str, Any]:
        """For a client that still shows the conversation: nothing is replayed."""
        session = await self._open(stored_session, session_id, cwd, mcp_servers)
        return updates.opened(session)

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **_: Any
    ) -> dict[str, Any]:
        if cursor is not None and not cursor.isdecimal():
            raise RequestError(INVALID_PARAMS, "the cursor is none of ours")
        first = int(cursor or 0)
        stored = await asyncio.to_thread(self._home.store.all)
        stored = [one for one in stored if cwd is None or one.cwd == cwd]
        last = first + SESSIONS_PER_PAGE
        sessions = [
            {
                "sessionId": one.session_id,
                "cwd": one.cwd,
                "title": one.title,
                "updatedAt": one.updated_at,
            }
            for one in stored[first:last]
        ]
        return {"sessions": sessions} | ({"nextCursor": str(last)} if last < len(stored) else {})

    async def close_session(self, session_id: str, **_: Any) -> dict[str, Any]:
        with _rpc_errors():
            session = self._session(session_id)
        del self._sessions[session_id]
        await session.close()
        return {}

    async def set_session_mode(self, session_id: str, mode_id: str, **_: Any) -> dict[str, Any]:
        with _rpc_errors():
            await choose_mode(self._session(session_id), mode_id)
        return {}

    async def set_config_option(
        self, config_id: str, session_id: str, value: str | bool, **_: Any
    ) -> dict[str, Any]:
        with _rpc_errors():
            session = self._session(session_id)
            if config_id != updates.MODEL_OPTION or not isinstance(value, str):
                raise ConfigError(f"There is no option {config_id[:100]!r} with such a value.")
            await self._choose_model(session, value)
        return {"configOptions": updates.config_options(session)}

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        session_id, model_id = params.get("sessionId"), params.get("modelId")
        if method != SET_MODEL:
            raise RequestError.method_not_found(method)
        if not isinstance(session_id, str) or not isinstance(model_id, str):
            raise RequestError(INVALID_PARAMS, "sessionId and modelId are strings")
        with _rpc_errors():
            await self._choose_model(self._session(session_id), model_id)
        return {}

    async def prompt(self, session_id: str, prompt: Sequence[Any], **_: Any) -> PromptResponse:
        with _rpc_errors():
            return await run_prompt(self._session(session_id), prompt)

    async def cancel(self, session_id: str, **_: Any) -> None:
        if session := self._sessions.get(session_id):
            session.cancel()

    def _session(self, session_id: str) -> Session:
        if session := self._sessions.get(session_id):
            return session
        raise StoreError(f"Session {session_id[:100]!r} is not open.")

    async def _open(
        self, opener: Opener, session_id: str, cwd: str, servers: Sequence[Any] | None
    ) -> Session:
        assert self._client is not None, "on_connect comes first"
        editor = Editor(self._client, self._capabilities, session_id)
        with _rpc_errors():
            if not cwd.startswith("/") or "\0" in cwd:
                raise ConfigError("cwd must be an absolute path.")
            specs = checked_specs(servers or ())
            if earlier := self._sessions.pop(session_id, None):
                await earlier.close()
            session = await opener(self._home, editor, cwd, specs)
        self._sessions[session_id] = session
        is_listed = await self._home.endpoints.listed(LIST_WAIT_S)
        # The present answer is sent before the task first runs.
        task = asyncio.create_task(self._introduce(session, is_listed))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return session

    async def _introduce(self, session: Session, is_listed: bool) -> None:
        try:
            await session.editor.update(available_commands())
            if not is_listed:
                await self._home.endpoints.listed(LATE_LIST_WAIT_S)
                await session.editor.update(updates.options_changed(session))
        except ConnectionError as error:
            log.info("an update was not sent: %r", error)

    async def _choose_model(self, session: Session, model_id: str) -> None:
        endpoints = self._home.endpoints
        selector = parse_selector(model_id, self._home.config)
        offers = endpoints.offers(selector.endpoint)
        is_configured = selector.model == selector.endpoint.default_model
        if offers and not is_configured and await endpoints.has_model(selector) is False:
            known = ", ".join(offer.model for offer in offers[:SHOWN_MODELS])
            raise ConfigError(f"There is no model {model_id[:100]!r}; there are {known}.")
        session.selector = selector
        session.save_if_stored()


@contextlib.contextmanager
def _rpc_errors() -> Iterator[None]:
    try:
        yield
    except BridgeError as error:
        code = INVALID_PARAMS if isinstance(error, ConfigError) else INTERNAL_ERROR
        data = vars(error) if isinstance(error, EndpointError) else None
        raise RequestError(code, str(error), data) from error


class EditorTransport(LineTransport):
    async def receive(self) -> dict[str, Any] | None:
        message = await super().receive()
        if message is not None and message.get("method") == SET_MODEL:
            message["method"] = f"_{SET_MODEL}"  # as an extension
        return message


async def serve(config: Config, environ: Mapping[str, str]) -> None:
    """Ends when the client closes its end, or by a signal. Raises ``ConfigError``."""
    transport = await _open_transport()
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


async def _open_transport() -> EditorTransport:
    """Reserves standard output for the protocol: other output goes to standard error."""
    for stream in (sys.stdin, sys.stdout):
        mode, is_terminal = os.fstat(stream.fileno()).st_mode, stream.isatty()
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or is_terminal):
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
