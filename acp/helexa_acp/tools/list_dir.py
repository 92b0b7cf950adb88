"""list_dir: the content of a folder."""

from __future__ import annotations

import asyncio
from pathlib import Path

from helexa_acp.errors import ToolError
from helexa_acp.rounds.modes import Action
from helexa_acp.tools.base import (
    PATH_PROPERTY,
    Arguments,
    Outcome,
    Preview,
    Tool,
    ToolContext,
    schema,
    take_path,
    text_outcome,
)
from helexa_acp.wire.base import ToolSpec

MAX_ENTRIES = 2000


async def preview(context: ToolContext, arguments: Arguments) -> Preview:
    path = take_path(arguments, "path", context.cwd)
    return Preview(f"List {path}", (path,))


async def run(context: ToolContext, arguments: Arguments) -> Outcome:
    path = take_path(arguments, "path", context.cwd)
    return text_outcome(await asyncio.to_thread(listed, path))


def listed(folder: Path) -> str:
    """A name a line, folders with a slash."""
    try:
        entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    except OSError as error:
        raise ToolError(f"{folder}: {error.strerror}") from None
    lines = [entry.name + ("/" if entry.is_dir() else "") for entry in entries[:MAX_ENTRIES]]
    if len(entries) > MAX_ENTRIES:
        lines.append(f"[{len(entries) - MAX_ENTRIES} more were left out]")
    return "\n".join(lines) or "[empty]"


TOOL = Tool(
    ToolSpec(
        name="list_dir",
        description="Lists what is in a folder.",
        parameters=schema(
            {"path": PATH_PROPERTY},
            "path",
        ),
    ),
    "read",
    Action.READ,
    preview,
    run,
)
