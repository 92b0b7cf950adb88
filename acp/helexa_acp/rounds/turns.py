"""One prompt: rounds of asking the model and running what it calls, until it calls nothing.

user's turn ─▶ ask ─▶ assistant's turn ─▶ calls ─▶ results ─▶ ask ─▶ ...   25 rounds at most
   saved                  saved                      saved
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from helexa_acp import updates
from helexa_acp.conversation.history import (
    INVALID_CALL,
    Part,
    Text,
    ToolCall,
    Usage,
    UserTurn,
    interrupted,
)
from helexa_acp.conversation.sessions import Session, StopReason
from helexa_acp.errors import EndpointError
from helexa_acp.rounds.asking import Asker
from helexa_acp.rounds.calls import CallRunner
from helexa_acp.rounds.drafts import Draft, understood
from helexa_acp.tools import tools_for
from helexa_acp.tools.base import Tool

log = logging.getLogger(__name__)
MAX_ROUNDS = 25
CANCELLED = "ERROR: the user cancelled it."


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRunner:
    asker: Asker
    calls: CallRunner
    save: Callable[[Session], None]
    """Everything that the session is, on the disk when it returns."""

    @property
    def _session(self) -> Session:
        return self.asker.session

    async def run(self, parts: tuple[Part, ...], used: Usage) -> StopReason:
        """``used`` counts what the prompt took. Cancelled, it leaves a history that can be gone on
        from. Raises EndpointError and StoreError."""
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
        """Takes a prompt that the endpoint does not take out of the history: later prompts would
        be refused for it. Raises EndpointError."""
        if error.refuses_content:
            self._session.history.pop()
            self.save(self._session)
            message = f"{error} (The prompt is not kept in the conversation.)"
            raise EndpointError(message, status=error.status, code=error.code) from error

    async def _tools(self) -> dict[str, Tool]:
        """Asked for each round: the mode may have changed."""
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
        """Whether there were any. One after the other; an answer that was cut off may have cut a
        call, so what it calls is not run."""
        session = self._session
        calls, misread = understood(draft.calls, tools, session.history)
        session.history.append(draft.turn(tuple(calls)))
        self.save(session)
        left = list(calls)
        misread_results = {one.call.call_id: one.result for one in misread}
        try:
            while left:
                call = left[0]
                if call.call_id in misread_results:
                    await self._show_misread(call, misread_results[call.call_id].parts)
                    result = misread_results[call.call_id]
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

    async def _show_misread(self, call: ToolCall, parts: tuple[Part, ...]) -> None:
        await self.asker.port.update(
            updates.call_started(
                call,
                title=INVALID_CALL,
                tool=None,
                status="failed",
                shown=updates.contents(parts),
            )
        )

    async def _show_usage(self) -> None:
        """How full the context is, where that is known."""
        session = self._session
        window = await self.asker.endpoints.context_window_of_loaded(session.selector)
        if window is not None and session.usage.last_total_tokens:
            shown = updates.context_used(session.usage.last_total_tokens, window)
            await self.asker.port.update(shown)
