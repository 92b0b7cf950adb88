"""One prompt of one session: a slash command, or rounds of the model, in a task that a
cancellation, or the next prompt, ends."""

from __future__ import annotations

import asyncio
import logging

from acp.schema import PromptResponse, SessionInfoUpdate
from acp.schema import Usage as TokensUsed

from helexa_acp import updates
from helexa_acp.commands import answer_command
from helexa_acp.errors import EndpointError
from helexa_acp.history import Part, ToolResult, Usage
from helexa_acp.modes import Mode
from helexa_acp.rounds import run_rounds
from helexa_acp.sessions import Session, StopReason

PLAN_TOOLS = frozenset({"write_file", "edit_file"})
PLAN_MENU = """

The plan is written. How to continue:

1. `/mode default`, then "go on": carry it out, asking before each change
2. `/mode bypassPermissions`, then "go on": carry it out without asking
3. stay in plan mode, and name the changes you want
"""
log = logging.getLogger(__name__)


async def run_prompt(session: Session, parts: tuple[Part, ...]) -> PromptResponse:
    """Cancels the prompt before it, and waits until its work has ended. Raises BridgeError."""
    session.cancel()
    asked = session.num_asked
    async with session.lock:
        if session.num_asked != asked:
            return PromptResponse(stop_reason="cancelled")
        used = Usage()
        session.turn = asyncio.create_task(_run(session, parts, used))
        try:
            reason = await _outcome(session.turn)
        finally:
            session.turn = None
    await session.editor.update(
        SessionInfoUpdate(
            session_update="session_info_update",
            title=session.record.title,
            updated_at=session.record.updated_at,
        )
    )
    tokens = TokensUsed(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        total_tokens=used.input_tokens + used.output_tokens,
        cached_read_tokens=used.cached_tokens,
        thought_tokens=used.thought_tokens,
    )
    return PromptResponse(stop_reason=reason, usage=tokens)


async def _outcome(turn: asyncio.Task[StopReason]) -> StopReason:
    """This task may be cancelled itself, when the agent exits."""
    try:
        await asyncio.wait([turn])
    except asyncio.CancelledError:
        turn.cancel()
        await asyncio.wait([turn])
        raise
    if turn.cancelled() or turn.cancelling():
        return "cancelled"
    return turn.result()


async def _run(session: Session, parts: tuple[Part, ...], used: Usage) -> StopReason:
    if await answer_command(session, parts):
        return "end_turn"
    num_before = len(session.record.history)
    try:
        reason = await run_rounds(session, parts, used)
    except EndpointError as error:
        endpoint = session.selector.endpoint
        message = f"{endpoint.name} ({endpoint.base_url}): {error}"
        log.warning(
            "session %s: the prompt failed (status %s, code %s): %s",
            *(session.record.session_id, error.status, error.code, message),
        )
        raise EndpointError(message, status=error.status, code=error.code) from error
    if reason == "end_turn" and _has_planned(session, num_before):
        await session.editor.update(updates.message(PLAN_MENU))
    return reason


def _has_planned(session: Session, num_before: int) -> bool:
    """Whether this prompt wrote a plan: nothing else is written in plan mode."""
    return session.record.mode is Mode.PLAN and any(
        isinstance(turn, ToolResult) and turn.name in PLAN_TOOLS and not turn.is_error
        for turn in session.record.history[num_before:]
    )
