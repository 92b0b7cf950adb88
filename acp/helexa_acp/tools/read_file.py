"""read_file: a text by lines, or an image."""

from __future__ import annotations

import asyncio
import base64

from helexa_acp.conversation.history import Image, Text
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
    take_optional_count,
    take_path,
    text_outcome,
)
from helexa_acp.tools.files import read_bytes, read_text
from helexa_acp.wire.base import ToolSpec

MAX_CHARACTERS = 100_000
IMAGE_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}


async def preview(context: ToolContext, arguments: Arguments) -> Preview:
    path = take_path(arguments, "path", context.cwd)
    line = take_optional_count(arguments, "line")
    return Preview(f"Read {path}" + (f", from line {line}" if line else ""), (path,))


async def run(context: ToolContext, arguments: Arguments) -> Outcome:
    path = take_path(arguments, "path", context.cwd)
    line = take_optional_count(arguments, "line") or 1
    limit = take_optional_count(arguments, "limit")
    if mime_type := IMAGE_TYPES.get(path.suffix.lower()):
        data = await asyncio.to_thread(read_bytes, path)
        return Outcome((Text(f"{path}:"), Image(mime_type, base64.b64encode(data).decode())))
    text = await read_text(context.port, path)
    return text_outcome(excerpt(text, line, limit))


def excerpt(text: str, line: int, limit: int | None) -> str:
    """Lines from ``line`` on, at most ``limit`` of them, and a note of the lines left out."""
    lines = text.splitlines(keepends=True)
    if line > max(len(lines), 1):
        raise ToolError(f"line {line} is past the end: there are {len(lines)} lines")
    chosen: list[str] = []
    num_characters = 0
    for candidate in lines[line - 1 :]:
        is_full = num_characters + len(candidate) > MAX_CHARACTERS and chosen
        if len(chosen) == limit or is_full:
            break
        chosen.append(candidate)
        num_characters += len(candidate)
    excerpted = "".join(chosen)
    if num_characters > MAX_CHARACTERS:
        excerpted = excerpted[:MAX_CHARACTERS] + "\n[the rest of this line was left out]\n"
    last = line - 1 + len(chosen)
    if last < len(lines):
        excerpted += f"\n[lines {line} to {last} of {len(lines)}; continue with line={last + 1}]"
    return excerpted


TOOL = Tool(
    ToolSpec(
        name="read_file",
        description="Reads a text file, or looks at an image (png, jpeg, gif, webp).",
        parameters=schema(
            {
                "path": PATH_PROPERTY,
                "line": {"type": "integer", "description": "The first line to read, from 1."},
                "limit": {"type": "integer", "description": "How many lines to read at most."},
            },
            "path",
        ),
    ),
    "read",
    Action.READ,
    preview,
    run,
)
