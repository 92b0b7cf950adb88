"""Sessions as files, one each, written atomically.

    sessions/hxa-<uuid>.json    what the session is; replaced after every round
    sessions/hxa-<uuid>.lock    empty; locked by the process that has the session open

A file belongs to the process that holds its lock: no other process writes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from helexa_acp.errors import StoreError
from helexa_acp.history import Turn, Usage

SESSION_ID = re.compile(r"hxa-[A-Za-z0-9-]{1,64}")
"""Clients send ids: none that matches leads out of the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    session_id: str
    cwd: str
    model_id: str
    mode_id: str
    history: tuple[Turn, ...]
    created_at: str
    updated_at: str
    elided_before: int = 0
    usage: Usage = dataclasses.field(default_factory=Usage)


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

    def save(self, session: StoredSession) -> None:
        """Atomic, and on the disk when it returns. The caller holds the session."""
        path = self._path(session.session_id)
        descriptor, name = tempfile.mkstemp(dir=self._folder, prefix=".partial-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(json.dumps(msgspec.to_builtins(session)).encode())
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def load(self, session_id: str) -> StoredSession:
        path = self._path(session_id)
        try:
            session = msgspec.convert(json.loads(path.read_bytes()), StoredSession)
            if session.session_id != session_id:
                raise ValueError("it is another session's file")
        except FileNotFoundError:
            raise StoreError(f"There is no session {session_id}.") from None
        except (OSError, ValueError, RecursionError) as error:
            raise StoreError(f"Session {session_id} cannot be read: {error}") from None
        return session

    def all(self) -> Iterator[StoredSession]:
        """The readable sessions, latest change first."""
        found = []
        for path in self._folder.glob("hxa-*.json"):
            with contextlib.suppress(StoreError):
                found.append(self.load(path.stem))
        yield from sorted(found, key=lambda one: (one.updated_at, one.session_id), reverse=True)

    def _path(self, session_id: str) -> Path:
        if not SESSION_ID.fullmatch(session_id):
            raise StoreError(f"{session_id[:100]!r} is not a session's id.")
        return self._folder / f"{session_id}.json"
