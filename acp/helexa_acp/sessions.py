"""One conversation with an editor, and its lifecycle.

IDLE ──▶ RUNNING ──▶ IDLE
 │          │
 │          └──▶ CANCELLING ──▶ IDLE
 └──▶ CLOSED
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import IO, Literal

from helexa_acp.config import Config, Selector, parse_selector
from helexa_acp.endpoints import Endpoints
from helexa_acp.errors import ConfigError, StoreError
from helexa_acp.history import Turn, Usage, UserTurn, answered, text_of
from helexa_acp.mcp import McpPool, ServerSpec
from helexa_acp.modes import Mode
from helexa_acp.store import SessionStore, StoredSession, new_session_id

TITLE_CHARACTERS = 60
StopReason = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]


class Phase(Enum):
    IDLE = "idle"
    RUNNING = "running"
    CANCELLING = "cancelling"
    CLOSED = "closed"


TRANSITIONS = {
    Phase.IDLE: {Phase.RUNNING, Phase.CLOSED},
    Phase.RUNNING: {Phase.IDLE, Phase.CANCELLING},
    Phase.CANCELLING: {Phase.IDLE},
    Phase.CLOSED: set[Phase](),
}


@dataclass(slots=True, kw_only=True)
class Session:
    session_id: str
    cwd: Path
    selector: Selector
    mcp: McpPool
    created_at: str
    """ISO 8601, UTC, like all times in files."""
    updated_at: str
    mode: Mode = Mode.DEFAULT
    history: list[Turn] = field(default_factory=list)
    elided_before: int = 0
    """Set by /compact: older turns are sent in short."""
    usage: Usage = field(default_factory=Usage)
    allowed: set[str] = field(default_factory=set)
    """The person's permissions for this session; not stored."""
    phase: Phase = Phase.IDLE
    hold: IO[bytes] | None = None
    """The lock on the session's file; ``None`` until there is a file."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the running prompt."""
    turn: asyncio.Task[StopReason] | None = None
    num_asked: int = 0
    """Prompts and cancellations so far: a prompt that waits for the lock runs only if it is still
    the latest."""
    reported_mcp_errors: set[str] = field(default_factory=set)

    def go(self, phase: Phase) -> None:
        if phase not in TRANSITIONS[self.phase]:
            raise RuntimeError(f"a session never goes from {self.phase.value} to {phase.value}")
        self.phase = phase

    @property
    def title(self) -> str | None:
        return title_of(self.history)


def title_of(history: list[Turn]) -> str | None:
    """The user's first text, on one line."""
    for turn in history:
        if isinstance(turn, UserTurn):
            text = " ".join(text_of(turn.parts).split())
            if text:
                return text if len(text) <= TITLE_CHARACTERS else text[: TITLE_CHARACTERS - 1] + "…"
    return None


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Sessions:
    def __init__(self, config: Config, endpoints: Endpoints, store: SessionStore) -> None:
        self._config = config
        self._endpoints = endpoints
        self._store = store
        self._open: dict[str, Session] = {}

    def get(self, session_id: str) -> Session:
        """Raises StoreError."""
        session = self._open.get(session_id)
        if session is None:
            raise StoreError(f"Session {session_id[:100]!r} is not open.")
        return session

    async def create(self, cwd: Path, servers: Sequence[ServerSpec]) -> Session:
        """Has no file before its first prompt."""
        selector = await self._endpoints.default_selector()
        now = utc_now()
        session = Session(
            session_id=new_session_id(),
            cwd=cwd,
            selector=selector,
            mcp=McpPool(servers, cwd),
            created_at=now,
            updated_at=now,
        )
        self._open[session.session_id] = session
        return session

    async def load(self, session_id: str, cwd: Path, servers: Sequence[ServerSpec]) -> Session:
        """Opens a session as last saved. Raises StoreError, also while another process has it."""
        if session_id in self._open:
            await self.close(session_id)
        hold = self._store.hold(session_id)
        try:
            stored = self._store.load(session_id)
            selector = await self._selector(stored)
        except BaseException:
            hold.close()
            raise
        session = Session(
            session_id=session_id,
            cwd=cwd,
            selector=selector,
            mcp=McpPool(servers, cwd),
            created_at=stored.created_at,
            updated_at=stored.updated_at,
            mode=_mode(stored.mode_id),
            history=answered(list(stored.history)),
            elided_before=stored.elided_before,
            usage=stored.usage,
            hold=hold,
        )
        self._open[session_id] = session
        return session

    def stored(self, cwd: str | None) -> list[StoredSession]:
        """The sessions of a working directory, or all; latest change first."""
        return [one for one in self._store.all() if cwd is None or one.cwd == cwd]

    def save(self, session: Session) -> None:
        """Raises StoreError. A session without any turn is not stored."""
        if session.hold is None:
            if not session.history:
                return
            session.hold = self._store.hold(session.session_id)
        session.updated_at = utc_now()
        stored = StoredSession(
            session_id=session.session_id,
            cwd=str(session.cwd),
            model_id=f"{session.selector.endpoint.name}:{session.selector.model}",
            mode_id=session.mode.value,
            history=tuple(session.history),
            created_at=session.created_at,
            updated_at=session.updated_at,
            elided_before=session.elided_before,
            usage=session.usage,
        )
        try:
            self._store.save(stored)
        except OSError as error:
            raise StoreError(f"The session cannot be saved: {error}") from error

    def cancel(self, session: Session) -> None:
        """Ends the running prompt, and those that wait for it. Its task continues until all its
        work has ended."""
        session.num_asked += 1
        if session.phase is Phase.RUNNING and session.turn is not None:
            session.go(Phase.CANCELLING)
            session.turn.cancel()

    async def close(self, session_id: str) -> None:
        session = self.get(session_id)
        self.cancel(session)
        async with session.lock:
            if session.phase is Phase.CLOSED:
                return
            session.go(Phase.CLOSED)
        self._open.pop(session_id, None)
        await session.mcp.close()
        if session.hold is not None:
            session.hold.close()

    async def close_all(self) -> None:
        closing = [self.close(session_id) for session_id in list(self._open)]
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*closing, return_exceptions=True)

    async def _selector(self, stored: StoredSession) -> Selector:
        """The configuration may have changed since."""
        try:
            return parse_selector(stored.model_id, self._config)
        except ConfigError:
            return await self._endpoints.default_selector()


def _mode(mode_id: str) -> Mode:
    try:
        return Mode(mode_id)
    except ValueError:
        return Mode.DEFAULT
