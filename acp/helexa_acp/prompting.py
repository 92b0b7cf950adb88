"""One prompt of one session, in a task that a cancellation, or the next prompt, ends: a slash
command, or rounds of asking the model and running its calls, until it makes none.

user's turn ─▶ ask ─▶ assistant's turn ─▶ calls ─▶ results ─▶ ask ─▶ ...   25 rounds at most
   saved                  saved                      saved
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from acp.helpers import update_current_mode
from acp.schema import AvailableCommandsUpdate, PromptResponse, SessionInfoUpdate, UsageUpdate
from acp.schema import Usage as TokensUsed

from helexa_acp import updates
from helexa_acp.asking import Draft, ask
from helexa_acp.calls import run_call, tools_for, understood
from helexa_acp.config import parse_selector
from helexa_acp.errors import ConfigError, EndpointError
from helexa_acp.history import (
    INTERRUPTED,
    NUM_PROTECTED_LAST,
    Part,
    Text,
    ToolResult,
    Usage,
    UserTurn,
    failed,
)
from helexa_acp.sessions import Session, StopReason
from helexa_acp.tools import Mode, Tool

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
log = logging.getLogger(__name__)


async def run_prompt(session: Session, blocks: Sequence[Any]) -> PromptResponse:
    """Waits until the cancelled prompt before it has ended. Raises BridgeError."""
    parts = updates.parts_of(blocks)
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
    if await _answer_command(session, parts):
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
    """Plan mode lets tools write only a plan."""
    return session.record.mode is Mode.PLAN and any(
        isinstance(turn, ToolResult) and turn.name in PLAN_TOOLS and not turn.is_error
        for turn in session.record.history[num_before:]
    )


async def _run_rounds(session: Session, parts: tuple[Part, ...], used: Usage) -> StopReason:
    """Cancelled, it leaves a history that can be continued."""
    session.record.history.append(UserTurn(parts))
    session.save()
    for number in range(1, MAX_ROUNDS + 1):
        tools = await _usable_tools(session)
        draft = await _asked(session, tools, number)
        used.add(draft.usage)
        session.record.usage.add(draft.usage)
        has_called = await _run_calls(session, draft, tools)
        await _report_usage(session)
        if draft.reason == "refusal":
            return "refusal"
        if draft.reason == "length":
            return "max_tokens"
        if not has_called:
            return "end_turn"
    return "max_turn_requests"


async def _asked(session: Session, tools: dict[str, Tool], number: int) -> Draft:
    """An answer that breaks off is kept as far as it came."""
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
    """Else later prompts would be refused for it."""
    if error.status in (400, 413, 422):
        session.record.history.pop()
        session.save()
        message = f"{error} (The prompt is not kept in the conversation.)"
        raise EndpointError(message, status=error.status, code=error.code) from error


async def _usable_tools(session: Session) -> dict[str, Tool]:
    """Called for each round: the mode may have changed."""
    tools, failures = await _tools(session)
    for name, why in failures.items():
        if name not in session.reported_mcp_errors:
            session.reported_mcp_errors.add(name)
            warning = f"MCP server {name} cannot be used: {why}\n\n"
            await session.editor.update(updates.message(warning))
    return tools


async def _tools(session: Session) -> tuple[dict[str, Tool], dict[str, str]]:
    theirs, failures = await session.mcp.tools()
    ours = tools_for(session.home.config, session.record.mode)
    return {tool.spec.name: tool for tool in ours} | theirs, failures


async def _run_calls(session: Session, draft: Draft, tools: dict[str, Tool]) -> bool:
    """A truncated answer may have truncated a call, so its calls are not run."""
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


async def _report_usage(session: Session) -> None:
    window = await session.home.endpoints.context_window_of_loaded(session.selector)
    used = session.record.usage.last_total_tokens
    if window is not None and used:
        shown = UsageUpdate(session_update="usage_update", used=used, size=window)
        await session.editor.update(shown)


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    description: str
    run: Callable[[Session, str], Awaitable[str]]
    """Takes the text after the name; its result is shown to the user."""
    hint: str | None = None


async def show_help(session: Session, argument: str) -> str:
    return "\n".join(f"- `/{one.name}`: {one.description}" for one in COMMANDS)


async def clear(session: Session, argument: str) -> str:
    session.record.history.clear()
    session.record.elided_before = 0
    session.record.usage.last_total_tokens = 0
    return "The conversation is forgotten. Files stay as they are."


async def compact(session: Session, argument: str) -> str:
    session.record.elided_before = max(len(session.record.history) - NUM_PROTECTED_LAST, 0)
    return "Long results and answers so far now go out in short. The session keeps them."


async def show_usage(session: Session, argument: str) -> str:
    used = session.record.usage
    window = session.home.endpoints.context_window(session.selector) or "an unknown number of"
    lines = [
        f"- tokens in: {used.input_tokens}, of them cached: {used.cached_tokens}",
        f"- tokens out: {used.output_tokens}, of them thoughts: {used.thought_tokens}",
        f"- the context holds {used.last_total_tokens} of {window} tokens",
    ]
    return "\n".join(lines)


async def model(session: Session, argument: str) -> str:
    if argument:
        session.selector = parse_selector(argument, session.home.config)
        await session.editor.update(updates.options_changed(session))
    chosen = session.selector
    return f"The model is {chosen.model} at {chosen.endpoint.name}."


async def mode(session: Session, argument: str) -> str:
    if argument:
        await choose_mode(session, argument)
    return f"The mode is {session.record.mode.value}."


async def show_tools(session: Session, argument: str) -> str:
    tools, failures = await _tools(session)
    lines = [f"- `{name}`: {tool.spec.description}" for name, tool in tools.items()]
    return "\n".join([*lines, *(f"- MCP server {one}: {why}" for one, why in failures.items())])


COMMANDS = (
    Command("help", "Lists the commands.", show_help),
    Command("clear", "Forgets the conversation so far.", clear),
    Command("compact", "Sends long results and answers so far in short.", compact),
    Command("usage", "Shows how many tokens this session has taken.", show_usage),
    Command("model", "Shows or changes the model.", model, "MODEL or ENDPOINT:MODEL"),
    Command("mode", "Shows or changes the mode.", mode, " | ".join(one.value for one in Mode)),
    Command("tools", "Lists the tools that the model has.", show_tools),
)


async def _answer_command(session: Session, parts: tuple[Part, ...]) -> bool:
    match parts:
        case (Text(text),) if text.startswith("/"):
            name, _, argument = text[1:].strip().partition(" ")
        case _:
            return False
    command = next((one for one in COMMANDS if one.name == name), None)
    if command is None:
        return False
    try:
        answer = await command.run(session, argument.strip())
    except ConfigError as error:
        answer = str(error)
    await session.editor.update(updates.message(answer))
    session.save_if_stored()
    return True


def available_commands() -> AvailableCommandsUpdate:
    listed = [
        {"name": one.name, "description": one.description, "input": one.hint and {"hint": one.hint}}
        for one in COMMANDS
    ]
    update = {"sessionUpdate": "available_commands_update", "availableCommands": listed}
    return AvailableCommandsUpdate.model_validate(update)


async def choose_mode(session: Session, written: str) -> None:
    """Raises ConfigError."""
    known = {one.value.lower(): one for one in Mode}
    if written.lower() not in known:
        names = ", ".join(one.value for one in Mode)
        raise ConfigError(f"There is no mode {written[:100]!r}; there are {names}.")
    session.record.mode = known[written.lower()]
    session.save_if_stored()
    await session.editor.update(update_current_mode(session.record.mode.value))
