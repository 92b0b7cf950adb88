"""Texts of files: the editor's where it has them, the disk's otherwise."""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
from pathlib import Path

from helexa_acp.client_port import ClientPort
from helexa_acp.errors import ToolError

MAX_FILE_BYTES = 16 * 1024 * 1024


async def read_text(port: ClientPort, path: Path) -> str:
    """Raises ToolError."""
    refusal = ""
    if port.reads_files and not await asyncio.to_thread(path.is_dir):
        known = await port.read_text(path)
        if isinstance(known, str):
            return known
        refusal = f" (the editor: {known.why})"
    try:
        data = await asyncio.to_thread(read_bytes, path)
    except ToolError as error:
        raise ToolError(f"{error}{refusal}") from None
    if b"\0" in data[:8192]:
        raise ToolError(f"{path} is not a text file")
    return data.decode("utf-8", "replace")


def read_bytes(path: Path) -> bytes:
    """A regular file's, and no more of it than fits. Raises ToolError."""
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
    """Whole or not at all; a link stays a link, and a file keeps its mode."""
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
