"""write_file: a whole file, new or replaced."""

from __future__ import annotations

from acp.schema import FileEditToolCallContent

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
    take_text,
    text_outcome,
)
from helexa_acp.tools.editing import remembered
from helexa_acp.tools.files import read_text, write_text
from helexa_acp.wire.base import ToolSpec


async def preview(context: ToolContext, arguments: Arguments) -> Preview:
    path = take_path(arguments, "path", context.cwd)
    content = take_text(arguments, "content")
    try:
        before = await read_text(context.port, path)
    except ToolError:
        before = None
    diff = FileEditToolCallContent(type="diff", path=str(path), old_text=before, new_text=content)
    key, remembered_as = remembered(path, context.cwd)
    return Preview(f"Write {path}", (path,), (diff,), key, remembered_as)


async def run(context: ToolContext, arguments: Arguments) -> Outcome:
    path = take_path(arguments, "path", context.cwd)
    content = take_text(arguments, "content")
    shown = (await preview(context, arguments)).shown
    await write_text(context.port, path, content)
    return text_outcome(f"wrote {len(content)} characters to {path}", *shown)


TOOL = Tool(
    ToolSpec(
        name="write_file",
        description="Writes a whole text file; replaces what was there and makes missing folders.",
        parameters=schema(
            {
                "path": PATH_PROPERTY,
                "content": {"type": "string", "description": "The file's whole text."},
            },
            "path",
            "content",
        ),
    ),
    "edit",
    Action.WRITE,
    preview,
    run,
)
