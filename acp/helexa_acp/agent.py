"""The methods of ACP, each a call of the session's parts. Errors become JSON-RPC errors here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from acp import PROTOCOL_VERSION, RequestError
from acp.interfaces import Client
from acp.schema import (
    AuthenticateResponse,
    ClientCapabilities,
    CloseSessionResponse,
    Implementation,
    ListSessionsResponse,
    PromptResponse,
    SessionInfo,
    SetSessionConfigOptionResponse,
    SetSessionModeResponse,
)

from helexa_acp import __version__, updates
from helexa_acp.config import Config, parse_selector
from helexa_acp.editor import ClientPort
from helexa_acp.endpoints import Endpoints
from helexa_acp.errors import BridgeError, ConfigError, EndpointError
from helexa_acp.mcp import checked_specs
from helexa_acp.modes import Mode
from helexa_acp.prompting import Prompter, available_commands
from helexa_acp.prompts import PromptError, parts_of
from helexa_acp.sessions import Session, Sessions, title_of
from helexa_acp.tools import TOOLS

SESSIONS_PER_PAGE = 100
SHOWN_MODELS = 10
LIST_WAIT_S = 0.25
"""How long a new session waits for the list of models, which also comes later as an update."""
INVALID_PARAMS, INTERNAL_ERROR = -32602, -32603
log = logging.getLogger(__name__)


class HelexaAgent:
    """Call ``close`` when the client has disconnected."""

    def __init__(
        self, config: Config, endpoints: Endpoints, sessions: Sessions, data_dir: Path
    ) -> None:
        self._config = config
        self._endpoints = endpoints
        self._sessions = sessions
        self._data_dir = data_dir
        self._client: Client | None = None
        self._capabilities = ClientCapabilities()
        self._background: set[asyncio.Task[None]] = set()

    def on_connect(self, conn: Client) -> None:
        self._client = conn

    async def close(self) -> None:
        for task in self._background:
            task.cancel()
        await self._sessions.close_all()
        await self._endpoints.close()

    # Before there is a session.

    async def initialize(
        self,
        protocol_version: int,
        client_capabilities: ClientCapabilities | None = None,
        client_info: Implementation | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        self._capabilities = client_capabilities or ClientCapabilities()
        self._endpoints.begin_listing()
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

    async def authenticate(self, method_id: str, **_: Any) -> AuthenticateResponse:
        """Keys are in the configuration; the editor has nothing to do."""
        return AuthenticateResponse()

    # Sessions.

    async def new_session(
        self, cwd: str, mcp_servers: Sequence[Any] | None = None, **_: Any
    ) -> dict[str, Any]:
        with _rpc_errors():
            folder, servers = _folder(cwd), checked_specs(mcp_servers or ())
            session = await self._sessions.create(folder, servers)
        await self._endpoints.listed(LIST_WAIT_S)
        self._soon(self._introduce(session))
        return {"sessionId": session.session_id, **self._pickers(session)}

    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: Sequence[Any] | None = None, **_: Any
    ) -> dict[str, Any]:
        session = await self._opened(session_id, cwd, mcp_servers)
        tools = {tool.spec.name: tool for tool in TOOLS}
        port = self._port(session)
        for update in updates.replayed(session.history, tools):
            await port.update(update)
        self._soon(self._introduce(session))
        return self._pickers(session)

    async def resume_session(
        self, session_id: str, cwd: str, mcp_servers: Sequence[Any] | None = None, **_: Any
    ) -> dict[str, Any]:
        """Opens a stored session without replaying it, for a client that still shows the
        conversation."""
        session = await self._opened(session_id, cwd, mcp_servers)
        self._soon(self._introduce(session))
        return self._pickers(session)

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **_: Any
    ) -> ListSessionsResponse:
        if cursor is not None and not cursor.isdecimal():
            raise RequestError(INVALID_PARAMS, "the cursor is none of ours")
        first = int(cursor or 0)
        stored = await asyncio.to_thread(self._sessions.stored, cwd)
        page = stored[first : first + SESSIONS_PER_PAGE]
        last = first + len(page)
        return ListSessionsResponse(
            sessions=[
                SessionInfo(
                    session_id=one.session_id,
                    cwd=one.cwd,
                    title=title_of(list(one.history)),
                    updated_at=one.updated_at,
                )
                for one in page
            ],
            next_cursor=str(last) if last < len(stored) else None,
        )

    async def close_session(self, session_id: str, **_: Any) -> CloseSessionResponse:
        with _rpc_errors():
            await self._sessions.close(session_id)
        return CloseSessionResponse()

    # A session's settings.

    async def set_session_mode(
        self, session_id: str, mode_id: str, **_: Any
    ) -> SetSessionModeResponse:
        with _rpc_errors():
            session = self._sessions.get(session_id)
            if mode_id not in [mode.value for mode in Mode]:
                raise ConfigError(f"There is no mode {mode_id[:100]!r}.")
            await self._prompter(session).choose_mode(Mode(mode_id))
        return SetSessionModeResponse()

    async def set_config_option(
        self, config_id: str, session_id: str, value: str | bool, **_: Any
    ) -> SetSessionConfigOptionResponse:
        with _rpc_errors():
            session = self._sessions.get(session_id)
            if config_id != updates.MODEL_OPTION or not isinstance(value, str):
                raise ConfigError(f"There is no option {config_id[:100]!r} with such a value.")
            await self._choose_model(session, value)
        options = updates.config_options(self._config, self._endpoints, session)
        return SetSessionConfigOptionResponse.model_validate({"configOptions": options})

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """``session/set_model``, which ACP had before config options."""
        session_id, model_id = params.get("sessionId"), params.get("modelId")
        if method != "session/set_model":
            raise RequestError.method_not_found(method)
        if not isinstance(session_id, str) or not isinstance(model_id, str):
            raise RequestError(INVALID_PARAMS, "sessionId and modelId are strings")
        with _rpc_errors():
            await self._choose_model(self._sessions.get(session_id), model_id)
        return {}

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        log.info("a notification that nobody knows: %s", method[:100])

    # Prompts.

    async def prompt(self, session_id: str, prompt: Sequence[Any], **_: Any) -> PromptResponse:
        with _rpc_errors():
            session = self._sessions.get(session_id)
            return await self._prompter(session).prompt(parts_of(prompt))

    async def cancel(self, session_id: str, **_: Any) -> None:
        with contextlib.suppress(BridgeError):
            self._sessions.cancel(self._sessions.get(session_id))

    # Shared.

    def _port(self, session: Session) -> ClientPort:
        assert self._client is not None, "on_connect comes first"
        return ClientPort(self._client, self._capabilities, session.session_id)

    def _prompter(self, session: Session) -> Prompter:
        return Prompter(
            config=self._config,
            endpoints=self._endpoints,
            sessions=self._sessions,
            data_dir=self._data_dir,
            session=session,
            port=self._port(session),
        )

    async def _opened(self, session_id: str, cwd: str, servers: Sequence[Any] | None) -> Session:
        with _rpc_errors():
            specs = checked_specs(servers or ())
            session = await self._sessions.load(session_id, _folder(cwd), specs)
        await self._endpoints.listed(LIST_WAIT_S)
        return session

    async def _choose_model(self, session: Session, model_id: str) -> None:
        """Raises ``ConfigError``, also for a model that its endpoint neither lists nor accepts."""
        selector = parse_selector(model_id, self._config)
        offers = self._endpoints.offers(selector.endpoint)
        is_configured = selector.model == selector.endpoint.default_model
        if offers and not is_configured and await self._endpoints.has_model(selector) is False:
            known = ", ".join(offer.model for offer in offers[:SHOWN_MODELS])
            raise ConfigError(f"There is no model {model_id[:100]!r}; there are {known}.")
        session.selector = selector
        if session.hold is not None:
            self._sessions.save(session)

    def _pickers(self, session: Session) -> dict[str, Any]:
        return updates.opened(self._config, self._endpoints, session)

    async def _introduce(self, session: Session) -> None:
        """Sends the editor updates that need its knowledge of the session."""
        port = self._port(session)
        await port.update(available_commands())
        self._endpoints.warm_up()
        if not await self._endpoints.listed(0.0):
            await self._endpoints.listed(60.0)
            await port.update(updates.options_changed(self._config, self._endpoints, session))

    def _soon(self, work: Any) -> None:
        """Starts ``work`` in the background. The present answer is sent before the task first
        runs."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.info("an update was not sent: %r", error)


@contextlib.contextmanager
def _rpc_errors() -> Iterator[None]:
    """Our errors as JSON-RPC's, with a message for people."""
    try:
        yield
    except (PromptError, ConfigError) as error:
        raise RequestError(INVALID_PARAMS, str(error)) from error
    except EndpointError as error:
        data = {"status": error.status, "code": error.code}
        raise RequestError(INTERNAL_ERROR, str(error), data) from error
    except BridgeError as error:
        raise RequestError(INTERNAL_ERROR, str(error)) from error


def _folder(cwd: str) -> Path:
    if not cwd.startswith("/") or "\0" in cwd:
        raise ConfigError("cwd must be an absolute path.")
    return Path(cwd)
