"""update_plan: the model's next steps, shown in the editor as a checklist."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from acp import plan_entry
from acp import update_plan as plan_update
from msgspec import Struct

from helexa_acp.tools import (
    Action,
    Arguments,
    Outcome,
    Prepared,
    ToolContext,
    text_outcome,
    tool,
)


class Entry(Struct):
    content: str
    status: Literal["pending", "in_progress", "completed"] = "pending"
    priority: Literal["high", "medium", "low"] = "medium"


class Parameters(Struct):
    """Shows the user the whole plan, step by step, and how far it is. Call it again as steps begin
    and end. For tasks of several steps."""

    entries: list[Entry | str]

    def read(self) -> list[Entry]:
        return [Entry(one) if isinstance(one, str) else one for one in self.entries]


def plan_of(entries: list[Entry]) -> Any:
    written = [plan_entry(one.content, status=one.status, priority=one.priority) for one in entries]
    return plan_update(written)


def replayed_plan(arguments: Arguments) -> Any | None:
    """``None`` where the stored arguments are not readable."""
    try:
        return plan_of(msgspec.convert(arguments, Parameters).read())
    except msgspec.ValidationError:
        return None


async def prepare(context: ToolContext, given: Parameters) -> Prepared:
    entries = given.read()

    async def run() -> Outcome:
        await context.editor.update(plan_of(entries))
        return text_outcome("the plan is shown")

    num_done = sum(entry.status == "completed" for entry in entries)
    return Prepared(f"Plan: {num_done} of {len(entries)} done", run)


UPDATE_PLAN = tool("update_plan", "think", Action.READ, Parameters, prepare)
