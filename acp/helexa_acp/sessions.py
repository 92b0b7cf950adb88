"""One conversation with an editor: opened new or from its file, prompted and cancelled, closed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Literal

from helexa_acp.config import Config, Selector, parse_selector
from helexa_acp.editor import Editor
from helexa_acp.endpoints import Endpoints
from helexa_acp.errors import ConfigError
from helexa_acp.history import answered
from helexa_acp.mcp import McpPool, ServerSpec
from helexa_acp.store import Record, SessionStore
from helexa_acp.tools.base import plans_dir

StopReason = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]


@dataclass(frozen=True, slots=True)
class Home:
    """What all sessions of the process share."""

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
    """The lock on the session's file; ``None`` until there is a file."""
    allowed: set[str] = field(default_factory=set)
    """The person's permissions for this session; not stored."""
    reported_mcp_errors: set[str] = field(default_factory=set)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the running prompt."""
    turn: asyncio.Task[StopReason] | None = None
    num_asked: int = 0
    """Prompts and cancellations so far: a prompt that waits for the lock runs only if it is still
    the latest."""

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
        """Ends the running prompt, and those that wait for it. Its task continues until all its
        work has ended."""
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
    """A session as last saved. Raises StoreError, also while another process has it."""
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
