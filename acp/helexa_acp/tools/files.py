"""read_file, write_file, edit_file and list_dir, through the editor where it offers that."""

from __future__ import annotations

import asyncio
import base64
import os
import stat
import uuid
from pathlib import Path
from typing import Annotated

from acp import tool_diff_content
from msgspec import Meta, Struct

from helexa_acp.editor import Editor, expect
from helexa_acp.errors import ToolError
from helexa_acp.history import Image, Text
from helexa_acp.tools import (
    Action,
    Outcome,
    Prepared,
    Run,
    ToolContext,
    WrittenPath,
    absolute,
    is_within,
    resolved,
    text_outcome,
    tool,
)

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
EVERY_LINE = 2**53


async def read_text(editor: Editor, path: Path) -> str:
    """Unsaved changes in the editor are included. Raises ToolError."""
    refusal = ""
    fs = editor.capabilities.fs
    if fs and fs.read_text_file and not await asyncio.to_thread(path.is_dir):
        reading = editor.client.read_text_file(session_id=editor.session_id, path=str(path))
        try:
            return (await expect(reading, "the editor")).content
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


async def write_text(editor: Editor, path: Path, content: str) -> None:
    """Raises ToolError."""
    if (fs := editor.capabilities.fs) and fs.write_text_file:
        writing = editor.client.write_text_file(
            session_id=editor.session_id, path=str(path), content=content
        )
        await expect(writing, f"the editor did not write {path}")
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
        partial = real.with_name(f".{real.name[:100]}.{uuid.uuid4().hex}")
        try:
            opened = os.open(
                partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode
            )
            with os.fdopen(opened, "w", encoding="utf-8", newline="") as file:
                file.write(content)
            if mode is not None:
                partial.chmod(mode)
            partial.replace(real)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except (OSError, RuntimeError) as error:
        raise ToolError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


class ReadFile(Struct):
    """Reads a text file, or looks at an image (png, jpeg, gif, webp)."""

    path: WrittenPath
    line: Annotated[int, Meta(ge=1, description="The first line to read, from 1.")] = 1
    limit: Annotated[int, Meta(ge=1, description="How many lines to read at most.")] = EVERY_LINE


async def read_file(context: ToolContext, given: ReadFile) -> Prepared:
    path = absolute(given.path, context.cwd)

    async def run() -> Outcome:
        if mime_type := IMAGE_TYPES.get(path.suffix.lower()):
            data = await asyncio.to_thread(read_bytes, path)
            return Outcome((Text(f"{path}:"), Image(mime_type, base64.b64encode(data).decode())))
        return text_outcome(excerpt(await read_text(context.editor, path), given.line, given.limit))

    where = f", from line {given.line}" if given.line > 1 else ""
    return Prepared(f"Read {path}{where}", run, (path,))


def excerpt(text: str, line: int, limit: int) -> str:
    lines = text.splitlines(keepends=True)
    if line > max(len(lines), 1):
        raise ToolError(f"line {line} is past the end: there are {len(lines)} lines")
    chosen: list[str] = []
    num_characters = 0
    for candidate in lines[line - 1 : line - 1 + limit]:
        if num_characters + len(candidate) > MAX_CHARACTERS and chosen:
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


class WriteFile(Struct):
    """Writes a whole text file; replaces what was there and makes missing folders."""

    path: WrittenPath
    content: Annotated[str, Meta(description="The file's whole text.")]


async def write_file(context: ToolContext, given: WriteFile) -> Prepared:
    path, content = absolute(given.path, context.cwd), given.content

    async def difference() -> object:
        try:
            before = await read_text(context.editor, path)
        except ToolError:
            before = None
        return tool_diff_content(str(path), content, before)

    async def run() -> Outcome:
        shown = await difference()
        await write_text(context.editor, path, content)
        return text_outcome(f"wrote {len(content)} characters to {path}", shown)

    return _change(f"Write {path}", run, path, await difference(), context.cwd)


class EditFile(Struct):
    """Replaces one piece of text in a file. old_text must be in it exactly once."""

    path: WrittenPath
    old_text: Annotated[str, Meta(description="What is there, quoted exactly.")]
    new_text: Annotated[str, Meta(description="What takes its place.")]


async def edit_file(context: ToolContext, given: EditFile) -> Prepared:
    """An impossible edit fails here, before anybody is asked."""
    path = absolute(given.path, context.cwd)

    async def run() -> Outcome:
        before = await read_text(context.editor, path)
        after = edited(before, given.old_text, given.new_text)
        await write_text(context.editor, path, after)
        return text_outcome(f"edited {path}", tool_diff_content(str(path), after, before))

    edited(await read_text(context.editor, path), given.old_text, given.new_text)
    shown = tool_diff_content(str(path), given.new_text, given.old_text)
    return _change(f"Edit {path}", run, path, shown, context.cwd)


def edited(text: str, old: str, new: str) -> str:
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


def _change(title: str, run: Run, path: Path, shown: object, cwd: Path) -> Prepared:
    """All files inside of the working directory share one permission."""
    key, remembered_as = f"edit {resolved(path)}", "Always allow edits of this file, this session"
    if is_within(path, cwd):
        key, remembered_as = "edit", "Always allow edits in the project, this session"
    return Prepared(title, run, (path,), (shown,), key, remembered_as)


class ListDir(Struct):
    """Lists what is in a folder."""

    path: WrittenPath


async def list_dir(context: ToolContext, given: ListDir) -> Prepared:
    path = absolute(given.path, context.cwd)

    async def run() -> Outcome:
        return text_outcome(await asyncio.to_thread(listed, path))

    return Prepared(f"List {path}", run, (path,))


def listed(folder: Path) -> str:
    try:
        entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    except OSError as error:
        raise ToolError(f"{folder}: {error.strerror}") from None
    lines = [entry.name + ("/" if entry.is_dir() else "") for entry in entries[:MAX_ENTRIES]]
    if len(entries) > MAX_ENTRIES:
        lines.append(f"[{len(entries) - MAX_ENTRIES} more were left out]")
    return "\n".join(lines) or "[empty]"


READ_FILE = tool("read_file", "read", Action.READ, ReadFile, read_file)
WRITE_FILE = tool("write_file", "edit", Action.WRITE, WriteFile, write_file)
EDIT_FILE = tool("edit_file", "edit", Action.WRITE, EditFile, edit_file)
LIST_DIR = tool("list_dir", "read", Action.READ, ListDir, list_dir)
