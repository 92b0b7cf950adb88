"""Sessions as files, one each, written atomically.

sessions/hxa-<uuid>.json    the session; replaced after every round
sessions/hxa-<uuid>.lock    empty; locked by the process that has the session open
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import uuid
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct, field

from helexa_acp.errors import StoreError
from helexa_acp.history import Turn, Usage, UserTurn, text_of
from helexa_acp.modes import Mode

SESSION_ID = re.compile(r"hxa-[A-Za-z0-9-]{1,64}")
"""Clients send ids: none that matches leads out of the folder."""
TITLE_CHARACTERS = 60


class Record(Struct, kw_only=True):
    """A session's file. Times are ISO 8601, UTC."""

    session_id: str
    cwd: str
    model_id: str
    mode: Mode = field(default=Mode.DEFAULT, name="mode_id")
    history: list[Turn] = []
    created_at: str
    updated_at: str
    elided_before: int = 0
    """Set by /compact: older turns are sent in short."""
    usage: Usage = field(default_factory=Usage)

    @property
    def title(self) -> str | None:
        """The user's first text, on one line."""
        prompts = (turn for turn in self.history if isinstance(turn, UserTurn))
        texts = (" ".join(text_of(prompt.parts).split()) for prompt in prompts)
        text = next(filter(None, texts), None)
        if text is None or len(text) <= TITLE_CHARACTERS:
            return text
        return text[: TITLE_CHARACTERS - 1] + "…"


def new_session_id() -> str:
    return f"hxa-{uuid.uuid4()}"


class SessionStore:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def hold(self, session_id: str) -> IO[bytes]:
        """The locked file, which holds the session until it is closed. Raises StoreError while
        another process has it, or this one already."""
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
        """Atomic, and on the disk when it returns. The caller holds the session. Raises
        StoreError."""
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
        """The readable sessions, latest change first."""
        found = []
        for path in self._folder.glob("hxa-*.json"):
            with contextlib.suppress(StoreError):
                found.append(self.load(path.stem))
        return sorted(found, key=lambda one: (one.updated_at, one.session_id), reverse=True)

    def _path(self, session_id: str) -> Path:
        if not SESSION_ID.fullmatch(session_id):
            raise StoreError(f"{session_id[:100]!r} is not a session's id.")
        return self._folder / f"{session_id}.json"
