"""One prompt of one session, in a task that a cancellation, or the next prompt, ends: a slash
command, or rounds of asking the model and running its calls, until it makes none.

user's turn ─▶ ask ─▶ assistant's turn ─▶ calls ─▶ results ─▶ ask ─▶ ...   25 rounds at most
   saved                  saved                      saved
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from acp.schema import PromptResponse, SessionInfoUpdate, UsageUpdate
from acp.schema import Usage as TokensUsed

from helexa_acp import updates
from helexa_acp.asking import Draft, ask
from helexa_acp.calls import run_call, understood
from helexa_acp.commands import answer_command
from helexa_acp.errors import ConfigError, EndpointError
from helexa_acp.history import (
    INTERRUPTED,
    Image,
    Part,
    Text,
    ToolResult,
    Usage,
    UserTurn,
    clean,
    failed,
)
from helexa_acp.sessions import Session, StopReason
from helexa_acp.tools import tools_for
from helexa_acp.tools.base import Mode, Tool

MAX_ROUNDS = 25
CUT_OFF = "the answer was cut off; nothing was done."
CANCELLED = "the user cancelled it."
PLAN_TOOLS = frozenset({"write_file", "edit_file"})
PLAN_MENU = """

The plan is written. How to continue:

1. `/mode default`, then "go on": carry it out, asking before each change
2. `/mode bypassPermissions`, then "go on": carry it out without asking
3. stay in plan mode, and name the changes you want
"""
IMAGE_TYPE = re.compile(r"image/[\w.+-]+")
BASE64 = re.compile(r"[A-Za-z0-9+/\s]*={0,2}\s*")
log = logging.getLogger(__name__)


async def run_prompt(session: Session, blocks: Sequence[Any]) -> PromptResponse:
    """Cancels the prompt before it, and waits until its work has ended. Raises BridgeError."""
    parts = parts_of(blocks)
    session.cancel()
    asked = session.num_asked
    async with session.lock:
        if session.num_asked != asked:
            return PromptResponse(stop_reason="cancelled")
        used = Usage()
        session.turn = asyncio.create_task(_run(session, parts, used))
        reason = await _outcome(session.turn)
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
        reason = await _run_rounds(session, parts, used)
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


async def _run_rounds(session: Session, parts: tuple[Part, ...], used: Usage) -> StopReason:
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


def parts_of(blocks: Sequence[Any]) -> tuple[Part, ...]:
    """Raises ConfigError."""
    parts = tuple(_part(block) for block in blocks)
    if not any(isinstance(part, Image) or part.text.strip() for part in parts):
        raise ConfigError("the prompt is empty")
    return parts


def _part(block: Any) -> Part:
    match block.type:
        case "text":
            return Text(clean(block.text))
        case "image":
            return _image(block.mime_type, block.data)
        case "resource_link":
            return Text(f"[@{clean(block.name)}]({_place(clean(block.uri))})")
        case "resource":
            return _resource(block.resource)
        case kind:
            raise ConfigError(f"content of type {kind} is not taken")


def _image(mime_type: str, data: str) -> Image:
    if not IMAGE_TYPE.fullmatch(mime_type) or not data or not BASE64.fullmatch(data):
        raise ConfigError("an image must have an image's type and be Base64")
    return Image(mime_type, "".join(data.split()))


def _resource(resource: Any) -> Part:
    uri = clean(resource.uri)
    text = getattr(resource, "text", None)
    if text is not None:
        return Text(f'<file path="{_place(uri)}">\n{clean(text)}\n</file>')
    mime_type = resource.mime_type or ""
    if mime_type.startswith("image/"):
        return _image(mime_type, resource.blob)
    return Text(f"[{_place(uri)}: {mime_type or 'binary'}, not shown]")


def _place(uri: str) -> str:
    """The path of a file's URI, for tools; other URIs unchanged."""
    try:
        split = urlsplit(uri)
    except ValueError:
        return uri
    if split.scheme != "file":
        return uri
    return unquote(split.path) + (f"#{split.fragment}" if split.fragment else "")
