"""read_file, write_file, edit_file and list_dir, through the editor where it offers that."""

from __future__ import annotations

import asyncio
import base64
import os
import stat
import tempfile
from pathlib import Path

from acp import tool_diff_content

from helexa_acp.editor import ClientPort
from helexa_acp.errors import ToolError
from helexa_acp.history import Image, Text
from helexa_acp.modes import Action
from helexa_acp.tools.base import (
    PATH_PROPERTY,
    Arguments,
    Outcome,
    Preview,
    Tool,
    ToolContext,
    is_within,
    resolved,
    schema,
    take_optional_count,
    take_path,
    take_text,
    text_outcome,
)
from helexa_acp.wire import ToolSpec

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_CHARACTERS = 100_000
IMAGE_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
MAX_ENTRIES = 2000


async def read_text(port: ClientPort, path: Path) -> str:
    """Raises ToolError."""
    refusal = ""
    if port.reads_files and not await asyncio.to_thread(path.is_dir):
        try:
            return await port.read_text(path)
        except ToolError as error:
            refusal = f" ({error})"
    try:
        data = await asyncio.to_thread(read_bytes, path)
    except ToolError as error:
        raise ToolError(f"{error}{refusal}") from None
    if b"\0" in data[:8192]:
        raise ToolError(f"{path} is not a text file")
    return data.decode("utf-8", "replace")


def read_bytes(path: Path) -> bytes:
    """Reads a regular file, up to the limit. Raises ToolError."""
    try:
        # A pipe would wait for its writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ToolError(f"{path} is not a regular file")
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ToolError(f"{path}: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise ToolError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    return data


async def write_text(port: ClientPort, path: Path, content: str) -> None:
    """Raises ToolError."""
    if port.writes_files:
        await port.write_text(path, content)
    else:
        await asyncio.to_thread(_write_on_disk, path, content)


def _write_on_disk(path: Path, content: str) -> None:
    """Atomic; a link stays a link, and a file keeps its mode."""
    try:
        real = path.resolve()
        if real.exists() and not real.is_file():
            raise ToolError(f"{path} is not a regular file")
        real.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(real.stat().st_mode) if real.exists() else None
        descriptor, name = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name[:100]}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
                file.write(content)
            Path(name).chmod(0o666 & ~_umask() if mode is None else mode)
            Path(name).replace(real)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except (OSError, RuntimeError) as error:
        raise ToolError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def edited(text: str, old: str, new: str) -> str:
    """Replaces the one ``old`` in ``text``. Raises ToolError where there is none, or several."""
    if not old:
        raise ToolError("old_text is empty; write_file writes whole files")
    if old == new:
        raise ToolError("old_text and new_text are the same")
    num_found = text.count(old)
    if num_found == 0:
        raise ToolError("old_text is not in the file; read it again and quote it exactly")
    if num_found > 1:
        raise ToolError(
            f"old_text is in the file {num_found} times; quote more of what is around it"
        )
    return text.replace(old, new)


def remembered(path: Path, cwd: Path) -> tuple[str, str]:
    """All files inside of the working directory share one permission; others have their own."""
    if is_within(path, cwd):
        return "edit", "Always allow edits in the project, this session"
    return f"edit {resolved(path)}", "Always allow edits of this file, this session"


async def _preview_read(context: ToolContext, arguments: Arguments) -> Preview:
    path = take_path(arguments, "path", context.cwd)
    line = take_optional_count(arguments, "line")
    return Preview(f"Read {path}" + (f", from line {line}" if line else ""), (path,))


async def _read(context: ToolContext, arguments: Arguments) -> Outcome:
    path = take_path(arguments, "path", context.cwd)
    line = take_optional_count(arguments, "line") or 1
    limit = take_optional_count(arguments, "limit")
    if mime_type := IMAGE_TYPES.get(path.suffix.lower()):
        data = await asyncio.to_thread(read_bytes, path)
        return Outcome((Text(f"{path}:"), Image(mime_type, base64.b64encode(data).decode())))
    text = await read_text(context.port, path)
    return text_outcome(excerpt(text, line, limit))


def excerpt(text: str, line: int, limit: int | None) -> str:
    """Lines from ``line`` on, at most ``limit`` of them, and a note of omitted lines."""
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


READ_FILE = Tool(
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
    _preview_read,
    _read,
)


async def _preview_write(context: ToolContext, arguments: Arguments) -> Preview:
    path = take_path(arguments, "path", context.cwd)
    content = take_text(arguments, "content")
    try:
        before = await read_text(context.port, path)
    except ToolError:
        before = None
    diff = tool_diff_content(str(path), content, before)
    key, remembered_as = remembered(path, context.cwd)
    return Preview(f"Write {path}", (path,), (diff,), key, remembered_as)


async def _write(context: ToolContext, arguments: Arguments) -> Outcome:
    path = take_path(arguments, "path", context.cwd)
    content = take_text(arguments, "content")
    shown = (await _preview_write(context, arguments)).shown
    await write_text(context.port, path, content)
    return text_outcome(f"wrote {len(content)} characters to {path}", *shown)


WRITE_FILE = Tool(
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
    _preview_write,
    _write,
)


async def _preview_edit(context: ToolContext, arguments: Arguments) -> Preview:
    """An impossible edit fails here, before anybody is asked."""
    path = take_path(arguments, "path", context.cwd)
    old, new = take_text(arguments, "old_text"), take_text(arguments, "new_text")
    edited(await read_text(context.port, path), old, new)
    diff = tool_diff_content(str(path), new, old)
    key, remembered_as = remembered(path, context.cwd)
    return Preview(f"Edit {path}", (path,), (diff,), key, remembered_as)


async def _edit(context: ToolContext, arguments: Arguments) -> Outcome:
    """Reads the file again: it may have changed while the person was asked."""
    path = take_path(arguments, "path", context.cwd)
    old, new = take_text(arguments, "old_text"), take_text(arguments, "new_text")
    before = await read_text(context.port, path)
    after = edited(before, old, new)
    await write_text(context.port, path, after)
    diff = tool_diff_content(str(path), after, before)
    return text_outcome(f"edited {path}", diff)


EDIT_FILE = Tool(
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
    _preview_edit,
    _edit,
)


async def _preview_list(context: ToolContext, arguments: Arguments) -> Preview:
    path = take_path(arguments, "path", context.cwd)
    return Preview(f"List {path}", (path,))


async def _list(context: ToolContext, arguments: Arguments) -> Outcome:
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


LIST_DIR = Tool(
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
    _preview_list,
    _list,
)
