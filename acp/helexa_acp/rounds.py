"""One prompt: rounds of asking the model and running its calls, until it makes none.

user's turn ─▶ ask ─▶ assistant's turn ─▶ calls ─▶ results ─▶ ask ─▶ ...   25 rounds at most
   saved                  saved                      saved
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acp import update_tool_call
from acp.schema import PermissionOption, ToolCallLocation, ToolCallUpdate, UsageUpdate

from helexa_acp import updates
from helexa_acp.asking import Asker, Draft, error_parts, understood
from helexa_acp.config import Config
from helexa_acp.editor import ClientPort
from helexa_acp.errors import EndpointError, ToolError
from helexa_acp.history import (
    Part,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    UserTurn,
    clean_part,
    interrupted,
)
from helexa_acp.modes import Action, Verdict, judge
from helexa_acp.sessions import Session, StopReason
from helexa_acp.tools import tools_for
from helexa_acp.tools.base import Outcome, Preview, Tool, ToolContext, is_within, plans_dir

ALLOW_ONCE, ALLOW_ALWAYS, REJECT_ONCE = "allow_once", "allow_always", "reject_once"
NOT_ALLOWED = "the user did not allow it; do not try it in another way"
MAX_ROUNDS = 25
CANCELLED = "ERROR: the user cancelled it."
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRunner:
    config: Config
    data_dir: Path
    session: Session
    port: ClientPort

    async def run(self, call: ToolCall, tool: Tool) -> ToolResult:
        """Always returns a result, except for cancellation and a disconnected editor. The card in
        the editor ends as completed or failed."""
        context = ToolContext(self.port, self.session.cwd, self.config, self._shower(call))
        try:
            preview = await tool.preview(context, call.arguments)
        except ToolError as error:
            parts = error_parts(str(error))
            await self.port.update(updates.call_failed(call, tool, parts))
            return ToolResult(call_id=call.call_id, name=call.name, parts=parts, is_error=True)
        await self.port.update(
            updates.call_started(
                call, title=preview.title, tool=tool, paths=preview.paths, shown=preview.shown
            )
        )
        try:
            if self._must_ask(tool, preview):
                await self._ask(call, tool, preview)
            await self.port.update(update_tool_call(call.call_id, status="in_progress"))
            outcome = await tool.run(context, call.arguments)
        except ToolError as error:
            outcome = Outcome(error_parts(str(error)), is_error=True)
        except asyncio.CancelledError:
            await self._show_cancelled(call)
            raise
        except ConnectionError:
            raise
        except Exception:
            log.exception("tool %s failed", tool.spec.name)
            outcome = Outcome(error_parts("the tool itself failed"), is_error=True)
        return await self._done(call, outcome)

    def _must_ask(self, tool: Tool, preview: Preview) -> bool:
        """Raises ToolError where the mode forbids it."""
        plans = plans_dir(self.data_dir, self.session.cwd)
        is_plan_file = (
            tool.action is Action.WRITE
            and bool(preview.paths)
            and all(is_within(path, plans) for path in preview.paths)
        )
        judgement = judge(self.session.mode, tool.action, is_plan_file=is_plan_file)
        if judgement.verdict is Verdict.REFUSE:
            raise ToolError(judgement.reason)
        is_remembered = bool(preview.remembers) and preview.remembers in self.session.allowed
        return judgement.verdict is Verdict.ASK and not is_remembered

    async def _ask(self, call: ToolCall, tool: Tool, preview: Preview) -> None:
        """Raises ToolError unless the person allows it, and the mode still does by then."""
        asked = ToolCallUpdate(
            tool_call_id=call.call_id,
            title=preview.title,
            kind=tool.kind,
            status="pending",
            content=list(preview.shown) or None,
            locations=[ToolCallLocation(path=str(path)) for path in preview.paths] or None,
            raw_input=call.arguments,
        )
        chosen = await self.port.ask(asked, options(preview))
        if chosen not in (ALLOW_ONCE, ALLOW_ALWAYS):
            raise ToolError(NOT_ALLOWED)
        if chosen == ALLOW_ALWAYS and preview.remembers:
            self.session.allowed.add(preview.remembers)
        self._must_ask(tool, preview)

    def _shower(self, call: ToolCall) -> Any:
        async def show(contents: Sequence[Any]) -> None:
            update = update_tool_call(call.call_id, status="in_progress", content=contents)
            await self.port.update(update)

        return show

    async def _done(self, call: ToolCall, outcome: Outcome) -> ToolResult:
        shown = list(outcome.shown) or updates.contents(outcome.parts)
        status: updates.Status = "failed" if outcome.is_error else "completed"
        await self.port.update(update_tool_call(call.call_id, status=status, content=shown))
        return ToolResult(
            call_id=call.call_id,
            name=call.name,
            parts=tuple(map(clean_part, outcome.parts)),
            is_error=outcome.is_error,
        )

    async def _show_cancelled(self, call: ToolCall) -> None:
        """The task is being cancelled: the message must not wait for anything."""
        update = update_tool_call(call.call_id, status="failed")
        await asyncio.shield(asyncio.ensure_future(self.port.update(update)))


def options(preview: Preview) -> list[PermissionOption]:
    """The choices: allow once, allow for this session (where the preview remembers), reject."""
    always = [
        PermissionOption(option_id=ALLOW_ALWAYS, kind="allow_always", name=preview.remembered_as)
    ]
    return [
        PermissionOption(option_id=ALLOW_ONCE, kind="allow_once", name="Allow once"),
        *(always if preview.remembers else ()),
        PermissionOption(option_id=REJECT_ONCE, kind="reject_once", name="Reject"),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRunner:
    asker: Asker
    calls: CallRunner
    save: Callable[[Session], None]
    """Stores the whole session on the disk before it returns."""

    @property
    def _session(self) -> Session:
        return self.asker.session

    async def run(self, parts: tuple[Part, ...], used: Usage) -> StopReason:
        """``used`` counts the prompt's tokens. Cancelled, it leaves a history that can be
        continued. Raises EndpointError and StoreError."""
        self._session.history.append(UserTurn(parts))
        self.save(self._session)
        for number in range(1, MAX_ROUNDS + 1):
            tools = await self._tools()
            draft = Draft()
            selector = self._session.selector
            log.info(
                "session %s, round %d: asking %s for %s (%s, %s)",
                *(self._session.session_id, number, selector.endpoint.name, selector.model),
                *(selector.endpoint.wire_api, selector.endpoint.base_url),
            )
            try:
                await self.asker.ask(tools, draft)
            except BaseException as error:
                if not draft.is_empty:
                    self._session.history.append(draft.turn())
                    self.save(self._session)
                elif number == 1 and not draft.is_begun and isinstance(error, EndpointError):
                    self._withdraw_refused(error)
                raise
            log.info(
                "session %s, round %d: %s, %d characters, %d calls, %d + %d tokens",
                *(self._session.session_id, number, draft.reason, len(draft.text)),
                *(len(draft.calls), draft.usage.input_tokens, draft.usage.output_tokens),
            )
            used.add(draft.usage)
            self._session.usage.add(draft.usage)
            has_called = await self._run_calls(draft, tools)
            await self._show_usage()
            if draft.reason == "refusal":
                return "refusal"
            if draft.reason == "length":
                return "max_tokens"
            if not has_called:
                return "end_turn"
        return "max_turn_requests"

    def _withdraw_refused(self, error: EndpointError) -> None:
        """Removes a prompt that the endpoint refuses from the history: later prompts would be
        refused for it. Raises EndpointError."""
        if error.refuses_content:
            self._session.history.pop()
            self.save(self._session)
            message = f"{error} (The prompt is not kept in the conversation.)"
            raise EndpointError(message, status=error.status, code=error.code) from error

    async def _tools(self) -> dict[str, Tool]:
        """Called for each round: the mode may have changed."""
        session = self._session
        theirs = await session.mcp.tools()
        for name, why in session.mcp.failures.items():
            if name not in session.reported_mcp_errors:
                session.reported_mcp_errors.add(name)
                warning = Text(f"MCP server {name} cannot be used: {why}\n\n")
                await self.asker.port.update(updates.message(warning))
        ours = tools_for(self.asker.config, session.mode)
        return {tool.spec.name: tool for tool in (*ours, *theirs)}

    async def _run_calls(self, draft: Draft, tools: dict[str, Tool]) -> bool:
        """Whether there were any. One after the other; a truncated answer may have truncated a
        call, so its calls are not run."""
        session = self._session
        calls, misread = understood(draft.calls, tools, session.history)
        session.history.append(draft.turn(tuple(calls)))
        self.save(session)
        left = list(calls)
        try:
            while left:
                call = left[0]
                if call.call_id in misread:
                    result = misread[call.call_id]
                    await self.asker.port.update(updates.call_failed(call, None, result.parts))
                elif draft.reason == "length":
                    result = interrupted(call, "ERROR: the answer was cut off; nothing was done.")
                else:
                    result = await self.calls.run(call, tools[call.name])
                outcome = "failed" if result.is_error else "completed"
                log.info("session %s: call %s %s", session.session_id, call.name, outcome)
                session.history.append(result)
                left.pop(0)
        except BaseException as error:
            is_cancelled = isinstance(error, asyncio.CancelledError)
            why = CANCELLED if is_cancelled else "ERROR: interrupted before it was done."
            session.history += [interrupted(call, why) for call in left]
            self.save(session)
            raise
        if calls:
            self.save(session)
        return bool(calls)

    async def _show_usage(self) -> None:
        session = self._session
        window = await self.asker.endpoints.context_window_of_loaded(session.selector)
        if window is not None and session.usage.last_total_tokens:
            used = session.usage.last_total_tokens
            shown = UsageUpdate(session_update="usage_update", used=used, size=window)
            await self.asker.port.update(shown)
