"""Paths as models write them, and where plans are kept. Touches the disk only to resolve links."""

from __future__ import annotations

import os
from pathlib import Path

from helexa_acp.errors import ToolError

FNV_OFFSET, FNV_PRIME = 0x811C9DC5, 0x01000193


def absolute(written: str, cwd: Path) -> Path:
    """``written`` from ``cwd``, with ``~`` and ``$HOME`` expanded and ``..`` taken out."""
    if not written or "\0" in written:
        raise ToolError("the path is empty or holds a NUL character")
    home = str(Path.home())
    for prefix in ("~", "$HOME", "${HOME}"):
        if written == prefix or written.startswith(f"{prefix}/"):
            written = home + written[len(prefix) :]
            break
    return Path(os.path.normpath(cwd / written))


def resolved(path: Path) -> Path:
    """The real path: links followed, ``..`` taken as the file system takes it. A loop of links
    raises ToolError."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise ToolError(f"{path} cannot be resolved: {error}") from None


def is_within(path: Path, folder: Path) -> bool:
    """Whether the file that ``path`` means is in ``folder``, by their real places."""
    return resolved(path).is_relative_to(resolved(folder))


def plans_dir(data_dir: Path, cwd: Path) -> Path:
    """One folder for each working directory, named so that a person can distinguish them."""
    return data_dir / "plans" / f"{cwd.name or 'root'}-{fnv1a32(str(cwd).encode()):08x}"


def fnv1a32(data: bytes) -> int:
    """http://www.isthe.com/chongo/tech/comp/fnv/"""
    value = FNV_OFFSET
    for byte in data:
        value = (value ^ byte) * FNV_PRIME & 0xFFFFFFFF
    return value
