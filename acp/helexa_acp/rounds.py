"""One prompt: rounds of asking the model and running its calls, until it makes none.

user's turn ─▶ ask ─▶ assistant's turn ─▶ calls ─▶ results ─▶ ask ─▶ ...   25 rounds at most
   saved                  saved                      saved
"""

from __future__ import annotations

import asyncio
import logging

from acp.schema import UsageUpdate

from helexa_acp import updates
from helexa_acp.asking import Draft, ask
from helexa_acp.calls import run_call, understood
from helexa_acp.errors import EndpointError
from helexa_acp.history import INTERRUPTED, Part, Usage, UserTurn, failed
from helexa_acp.sessions import Session, StopReason
from helexa_acp.tools import tools_for
from helexa_acp.tools.base import Tool

MAX_ROUNDS = 25
CUT_OFF = "the answer was cut off; nothing was done."
CANCELLED = "the user cancelled it."
log = logging.getLogger(__name__)


async def run_rounds(session: Session, parts: tuple[Part, ...], used: Usage) -> StopReason:
    """``used`` counts the prompt's tokens. Cancelled, it leaves a history that can be continued.
    Raises EndpointError and StoreError."""
    session.record.history.append(UserTurn(parts))
    session.save()
    for number in range(1, MAX_ROUNDS + 1):
        tools = await _tools(session)
        draft = await _asked(session, tools, number)
        used.add(draft.usage)
        session.record.usage.add(draft.usage)
        has_called = await _run_calls(session, draft, tools)
        await _show_usage(session)
        if draft.reason == "refusal":
            return "refusal"
        if draft.reason == "length":
            return "max_tokens"
        if not has_called:
            return "end_turn"
    return "max_turn_requests"


async def _asked(session: Session, tools: dict[str, Tool], number: int) -> Draft:
    """An answer that breaks off is kept as far as it came. Raises EndpointError."""
    draft, endpoint = Draft(), session.selector.endpoint
    log.info(
        "session %s, round %d: asking %s for %s (%s, %s)",
        *(session.record.session_id, number, endpoint.name, session.selector.model),
        *(endpoint.wire_api, endpoint.base_url),
    )
    try:
        await ask(session, tools, draft)
    except BaseException as error:
        if not draft.is_empty:
            session.record.history.append(draft.turn())
            session.save()
        elif number == 1 and not draft.is_begun and isinstance(error, EndpointError):
            _withdraw_refused(session, error)
        raise
    log.info(
        "session %s, round %d: %s, %d characters, %d calls, %d + %d tokens",
        *(session.record.session_id, number, draft.reason, len(draft.text)),
        *(len(draft.calls), draft.usage.input_tokens, draft.usage.output_tokens),
    )
    return draft


def _withdraw_refused(session: Session, error: EndpointError) -> None:
    """Removes a prompt that the endpoint refuses from the history: later prompts would be refused
    for it. Raises EndpointError."""
    if error.refuses_content:
        session.record.history.pop()
        session.save()
        message = f"{error} (The prompt is not kept in the conversation.)"
        raise EndpointError(message, status=error.status, code=error.code) from error


async def _tools(session: Session) -> dict[str, Tool]:
    """Called for each round: the mode may have changed."""
    theirs, failures = await session.mcp.tools()
    for name, why in failures.items():
        if name not in session.reported_mcp_errors:
            session.reported_mcp_errors.add(name)
            warning = f"MCP server {name} cannot be used: {why}\n\n"
            await session.editor.update(updates.message(warning))
    ours = tools_for(session.home.config, session.record.mode)
    return {tool.spec.name: tool for tool in ours} | theirs


async def _run_calls(session: Session, draft: Draft, tools: dict[str, Tool]) -> bool:
    """Whether there were any. One after the other; a truncated answer may have truncated a call,
    so its calls are not run."""
    calls, misread = understood(draft.calls, tools, session.record.history)
    session.record.history.append(draft.turn(calls))
    session.save()
    left = list(calls)
    try:
        while left:
            call = left[0]
            if call.call_id in misread:
                result = misread[call.call_id]
                await session.editor.update(updates.call_failed(call, None, result))
            elif draft.reason == "length":
                result = failed(call, CUT_OFF)
            else:
                result = await run_call(session, call, tools[call.name])
            outcome = "failed" if result.is_error else "completed"
            log.info("session %s: call %s %s", session.record.session_id, call.name, outcome)
            session.record.history.append(result)
            left.pop(0)
    except BaseException as error:
        why = CANCELLED if isinstance(error, asyncio.CancelledError) else INTERRUPTED
        session.record.history += [failed(call, why) for call in left]
        session.save()
        raise
    if calls:
        session.save()
    return bool(calls)


async def _show_usage(session: Session) -> None:
    window = await session.home.endpoints.context_window_of_loaded(session.selector)
    used = session.record.usage.last_total_tokens
    if window is not None and used:
        shown = UsageUpdate(session_update="usage_update", used=used, size=window)
        await session.editor.update(shown)
