"""edit_file: one place in a file."""

from __future__ import annotations

from acp.schema import FileEditToolCallContent

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
    take_text,
    text_outcome,
)
from helexa_acp.tools.editing import edited, remembered
from helexa_acp.tools.files import read_text, write_text
from helexa_acp.wire.base import ToolSpec


async def preview(context: ToolContext, arguments: Arguments) -> Preview:
    """An edit that cannot be made fails here, before anybody is asked."""
    path = take_path(arguments, "path", context.cwd)
    old, new = take_text(arguments, "old_text"), take_text(arguments, "new_text")
    edited(await read_text(context.port, path), old, new)
    diff = FileEditToolCallContent(type="diff", path=str(path), old_text=old, new_text=new)
    key, remembered_as = remembered(path, context.cwd)
    return Preview(f"Edit {path}", (path,), (diff,), key, remembered_as)


async def run(context: ToolContext, arguments: Arguments) -> Outcome:
    """Reads the file again: it may have changed while the person was asked."""
    path = take_path(arguments, "path", context.cwd)
    old, new = take_text(arguments, "old_text"), take_text(arguments, "new_text")
    before = await read_text(context.port, path)
    after = edited(before, old, new)
    await write_text(context.port, path, after)
    diff = FileEditToolCallContent(type="diff", path=str(path), old_text=before, new_text=after)
    return text_outcome(f"edited {path}", diff)


TOOL = Tool(
    ToolSpec(
        name="edit_file",
        description="Replaces one piece of text in a file. old_text must be in it exactly once.",
        parameters=schema(
            {
                "path": PATH_PROPERTY,
                "old_text": {"type": "string", "description": "What is there, quoted exactly."},
                "new_text": {"type": "string", "description": "What takes its place."},
            },
            "path",
            "old_text",
            "new_text",
        ),
    ),
    "edit",
    Action.WRITE,
    preview,
    run,
)
