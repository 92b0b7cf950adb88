"""One conversation with an editor, and its lifecycle.

IDLE ──▶ RUNNING ──▶ IDLE
 │          │
 │          └──▶ CANCELLING ──▶ IDLE
 └──▶ CLOSED
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from helexa_acp.conversation.history import Turn, Usage, UserTurn, text_of
from helexa_acp.rounds.modes import Mode
from helexa_acp.selectors import Selector

if TYPE_CHECKING:
    from helexa_acp.conversation.store import Hold
    from helexa_acp.mcp.pool import McpPool

TITLE_CHARACTERS = 60
StopReason = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]
"""Why one turn ended."""


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
    """ISO 8601, UTC; as all times in files."""
    updated_at: str
    mode: Mode = Mode.DEFAULT
    history: list[Turn] = field(default_factory=list)
    elided_before: int = 0
    """What /compact was asked for: older turns are sent in short."""
    usage: Usage = field(default_factory=Usage)
    allowed: set[str] = field(default_factory=set)
    """What the person allowed for this session; kept nowhere else."""
    phase: Phase = Phase.IDLE
    hold: Hold | None = None
    """The lock on the session's file; ``None`` until there is a file."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the prompt that runs."""
    turn: asyncio.Task[StopReason] | None = None
    num_asked: int = 0
    """Prompts and cancellations so far: a prompt that waits for the lock runs only if nothing came
    after it."""
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
