"""One tool call: shown, judged, asked for, run, and its result."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acp.schema import PermissionOption, ToolCallLocation, ToolCallUpdate

from helexa_acp import updates
from helexa_acp.client_port import ClientPort
from helexa_acp.config import Config
from helexa_acp.conversation.history import ToolCall, ToolResult, clean_part
from helexa_acp.conversation.sessions import Session
from helexa_acp.errors import ToolError
from helexa_acp.paths import is_within, plans_dir
from helexa_acp.rounds.drafts import error_parts
from helexa_acp.rounds.modes import Action, Judgement, Verdict, judge
from helexa_acp.tools.base import Outcome, Preview, Tool, ToolContext

ALLOW_ONCE, ALLOW_ALWAYS, REJECT_ONCE = "allow_once", "allow_always", "reject_once"
NOT_ALLOWED = "the user did not allow it; do not try it in another way"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRunner:
    config: Config
    data_dir: Path
    session: Session
    port: ClientPort

    async def run(self, call: ToolCall, tool: Tool) -> ToolResult:
        """Whatever the call does, there is a result; but for cancellation and an editor that is
        gone. The card in the editor ends as completed or failed."""
        context = ToolContext(self.port, self.session.cwd, self.config, self._shower(call))
        try:
            preview = await tool.preview(context, call.arguments)
        except ToolError as error:
            return await self._refused(call, tool, str(error))
        await self.port.update(
            updates.call_started(
                call, title=preview.title, tool=tool, paths=preview.paths, shown=preview.shown
            )
        )
        try:
            self._check(tool, preview)
            if self._must_ask(tool, preview):
                await self._ask(call, tool, preview)
            await self.port.update(updates.call_progress(call.call_id, "in_progress"))
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

    def _judged(self, tool: Tool, preview: Preview) -> Judgement:
        plans = plans_dir(self.data_dir, self.session.cwd)
        is_plan_file = (
            tool.action is Action.WRITE
            and bool(preview.paths)
            and all(is_within(path, plans) for path in preview.paths)
        )
        return judge(self.session.mode, tool.action, is_plan_file=is_plan_file)

    def _check(self, tool: Tool, preview: Preview) -> None:
        judgement = self._judged(tool, preview)
        if judgement.verdict is Verdict.REFUSE:
            raise ToolError(judgement.reason)

    def _must_ask(self, tool: Tool, preview: Preview) -> bool:
        is_remembered = bool(preview.remembers) and preview.remembers in self.session.allowed
        return self._judged(tool, preview).verdict is Verdict.ASK and not is_remembered

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
        self._check(tool, preview)

    def _shower(self, call: ToolCall) -> Any:
        async def show(contents: Sequence[Any]) -> None:
            await self.port.update(updates.call_progress(call.call_id, "in_progress", contents))

        return show

    async def _refused(self, call: ToolCall, tool: Tool, why: str) -> ToolResult:
        """Reports a call that failed before it had a preview, and returns its error result."""
        parts = error_parts(why)
        await self.port.update(
            updates.call_started(
                call,
                title=call.name,
                tool=tool,
                status="failed",
                shown=updates.contents(parts),
            )
        )
        return ToolResult(call_id=call.call_id, name=call.name, parts=parts, is_error=True)

    async def _done(self, call: ToolCall, outcome: Outcome) -> ToolResult:
        shown = list(outcome.shown) or updates.contents(outcome.parts)
        status: updates.Status = "failed" if outcome.is_error else "completed"
        await self.port.update(updates.call_progress(call.call_id, status, shown))
        return ToolResult(
            call_id=call.call_id,
            name=call.name,
            parts=tuple(map(clean_part, outcome.parts)),
            is_error=outcome.is_error,
        )

    async def _show_cancelled(self, call: ToolCall) -> None:
        """The task is being cancelled: the message must not wait for anything."""
        update = updates.call_progress(call.call_id, "failed")
        await asyncio.shield(asyncio.ensure_future(self.port.update(update)))


def options(preview: Preview) -> list[PermissionOption]:
    """Returns the choices: allow once, allow for this session (where the preview remembers),
    reject."""
    always = [
        PermissionOption(option_id=ALLOW_ALWAYS, kind="allow_always", name=preview.remembered_as)
    ]
    return [
        PermissionOption(option_id=ALLOW_ONCE, kind="allow_once", name="Allow once"),
        *(always if preview.remembers else ()),
        PermissionOption(option_id=REJECT_ONCE, kind="reject_once", name="Reject"),
    ]
