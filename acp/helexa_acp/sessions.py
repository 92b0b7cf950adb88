"""One conversation with an editor: opened new or from its file, prompted and cancelled, closed.

sessions/hxa-<uuid>.json    the session; replaced atomically after every round
sessions/hxa-<uuid>.lock    empty; locked by the process that has the session open
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Literal

import msgspec
from msgspec import Struct
from msgspec import field as member

from helexa_acp.config import Config, Selector, parse_selector
from helexa_acp.editor import Editor
from helexa_acp.errors import ConfigError, StoreError
from helexa_acp.history import Turn, Usage, UserTurn, answered, text_of
from helexa_acp.mcp import McpPool, ServerSpec
from helexa_acp.tools import Mode, plans_dir
from helexa_acp.wire.endpoints import Endpoints

SESSION_ID = re.compile(r"hxa-[A-Za-z0-9-]{1,64}")
"""Clients send ids: none may lead out of the folder."""
TITLE_CHARACTERS = 60
StopReason = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]


class Record(Struct, kw_only=True):
    """Times are ISO 8601, UTC."""

    session_id: str
    cwd: str
    model_id: str
    mode: Mode = member(default=Mode.DEFAULT, name="mode_id")
    history: list[Turn] = []
    created_at: str
    updated_at: str
    elided_before: int = 0
    """Set by /compact: older turns are sent in short."""
    usage: Usage = member(default_factory=Usage)

    @property
    def title(self) -> str | None:
        prompts = (turn for turn in self.history if isinstance(turn, UserTurn))
        texts = (" ".join(text_of(prompt.parts).split()) for prompt in prompts)
        text = next(filter(None, texts), None)
        if text is None or len(text) <= TITLE_CHARACTERS:
            return text
        return text[: TITLE_CHARACTERS - 1] + "…"


class SessionStore:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def hold(self, session_id: str) -> IO[bytes]:
        """The file holds the session until closed. Raises StoreError while it is held."""
        lock_path = self._path(session_id).with_suffix(".lock")
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = lock_path.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise StoreError(f"Session {session_id} is open elsewhere; close it there.") from None
        return file

    def save(self, session: Record) -> None:
        """Atomic, and on the disk when it returns. Raises StoreError."""
        path = self._path(session.session_id)
        partial = path.with_suffix(".partial")
        data = json.dumps(msgspec.to_builtins(session)).encode()
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise StoreError(f"The session cannot be saved: {error}") from error

    def load(self, session_id: str) -> Record:
        path = self._path(session_id)
        try:
            session = msgspec.convert(json.loads(path.read_bytes()), Record)
            if session.session_id != session_id:
                raise ValueError("it is another session's file")
        except FileNotFoundError:
            raise StoreError(f"There is no session {session_id}.") from None
        except (OSError, ValueError, RecursionError) as error:
            raise StoreError(f"Session {session_id} cannot be read: {error}") from None
        return session

    def all(self) -> list[Record]:
        found = []
        for path in self._folder.glob("hxa-*.json"):
            with contextlib.suppress(StoreError):
                found.append(self.load(path.stem))
        return sorted(found, key=lambda one: (one.updated_at, one.session_id), reverse=True)

    def _path(self, session_id: str) -> Path:
        if not SESSION_ID.fullmatch(session_id):
            raise StoreError(f"{session_id[:100]!r} is not a session's id.")
        return self._folder / f"{session_id}.json"


@dataclass(frozen=True, slots=True)
class Home:
    config: Config
    endpoints: Endpoints
    store: SessionStore
    data_dir: Path


@dataclass(slots=True, eq=False)
class Session:
    home: Home
    editor: Editor
    record: Record
    selector: Selector
    mcp: McpPool
    hold: IO[bytes] | None = None
    """``None`` until there is a file."""
    allowed: set[str] = field(default_factory=set)
    """Permissions for this session; not stored."""
    reported_mcp_errors: set[str] = field(default_factory=set)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the running prompt."""
    turn: asyncio.Task[StopReason] | None = None
    num_asked: int = 0
    """A prompt that waits for the lock runs only if it is still the latest."""

    @property
    def cwd(self) -> Path:
        return Path(self.record.cwd)

    @property
    def plans_dir(self) -> Path:
        return plans_dir(self.home.data_dir, self.cwd)

    def save(self) -> None:
        """Raises StoreError. A session without any turn is not stored."""
        if self.hold is None:
            if not self.record.history:
                return
            self.hold = self.home.store.hold(self.record.session_id)
        self.record.model_id = f"{self.selector.endpoint.name}:{self.selector.model}"
        self.record.updated_at = utc_now()
        self.home.store.save(self.record)

    def save_if_stored(self) -> None:
        if self.hold is not None:
            self.save()

    def cancel(self) -> None:
        """Waiting prompts end too. The task continues until all its work has ended."""
        self.num_asked += 1
        if self.turn is not None and not self.turn.cancelling():
            self.turn.cancel()

    async def close(self) -> None:
        self.cancel()
        async with self.lock:
            await self.mcp.close()
            if self.hold is not None:
                self.hold.close()


async def new_session(
    home: Home, editor: Editor, cwd: str, servers: Sequence[ServerSpec]
) -> Session:
    """Has no file before its first prompt."""
    selector = await home.endpoints.default_selector()
    now = utc_now()
    record = Record(
        session_id=editor.session_id, cwd=cwd, model_id="", created_at=now, updated_at=now
    )
    return Session(home, editor, record, selector, McpPool(servers, Path(cwd)))


async def stored_session(
    home: Home, editor: Editor, cwd: str, servers: Sequence[ServerSpec]
) -> Session:
    """Raises StoreError, also while another process has the session."""
    hold = home.store.hold(editor.session_id)
    try:
        record = home.store.load(editor.session_id)
        try:
            selector = parse_selector(record.model_id, home.config)
        except ConfigError:  # the configuration has changed since
            selector = await home.endpoints.default_selector()
    except BaseException:
        hold.close()
        raise
    record.cwd, record.history = cwd, answered(record.history)
    return Session(home, editor, record, selector, McpPool(servers, Path(cwd)), hold)


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
