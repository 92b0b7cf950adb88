"""update_plan: the model's next steps, shown in the editor as a checklist."""

from __future__ import annotations

from typing import Any

from acp import plan_entry, update_plan
from acp.schema import PlanEntry

from helexa_acp.errors import ToolError
from helexa_acp.modes import Action
from helexa_acp.tools.base import (
    Arguments,
    Outcome,
    Preview,
    Tool,
    ToolContext,
    schema,
    text_outcome,
)
from helexa_acp.wire import ToolSpec

STATUSES = ("pending", "in_progress", "completed")
PRIORITIES = ("high", "medium", "low")


async def preview(context: ToolContext, arguments: Arguments) -> Preview:
    entries = plan_entries(arguments)
    num_done = sum(entry.status == "completed" for entry in entries)
    return Preview(f"Plan: {num_done} of {len(entries)} done")


async def run(context: ToolContext, arguments: Arguments) -> Outcome:
    await context.port.update(update_plan(plan_entries(arguments)))
    return text_outcome("the plan is shown")


def plan_entries(arguments: Arguments) -> list[PlanEntry]:
    """Raises ToolError."""
    entries = arguments.get("entries")
    if not isinstance(entries, list):
        raise ToolError("the argument 'entries' must be a list")
    return [_entry(entry) for entry in entries]


def _entry(entry: Any) -> PlanEntry:
    if isinstance(entry, str):
        entry = {"content": entry}
    if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
        raise ToolError("each entry must be an object with its content")
    status, priority = entry.get("status", "pending"), entry.get("priority", "medium")
    if status not in STATUSES or priority not in PRIORITIES:
        raise ToolError(f"a status is one of {STATUSES}, a priority one of {PRIORITIES}")
    return plan_entry(entry["content"], status=status, priority=priority)


TOOL = Tool(
    ToolSpec(
        name="update_plan",
        description="Shows the user the whole plan, step by step, and how far it is. Call it again "
        "as steps begin and end. For tasks of several steps.",
        parameters=schema(
            {
                "entries": {
                    "type": "array",
                    "items": schema(
                        {
                            "content": {"type": "string"},
                            "status": {"type": "string", "enum": list(STATUSES)},
                            "priority": {"type": "string", "enum": list(PRIORITIES)},
                        },
                        "content",
                        "status",
                    ),
                }
            },
            "entries",
        ),
    ),
    "think",
    Action.READ,
    preview,
    run,
)
