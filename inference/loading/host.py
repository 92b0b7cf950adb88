"""Memory of the host, or of the control group (version 2) that confines this process; and whether
Triton can build its launchers, a small C extension: with ``CC``, gcc or clang, against this
Python's headers. Imports no torch."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

CONTROL_GROUP = Path("/sys/fs/cgroup")
COMPILERS = ("gcc", "clang")


@dataclass(frozen=True, slots=True)
class HostMemory:
    total_bytes: int
    free_bytes: int


def host_memory(control_group: Path = CONTROL_GROUP) -> HostMemory:
    memory = psutil.virtual_memory()
    total_bytes, free_bytes = int(memory.total), int(memory.available)
    limit_bytes = _number(control_group / "memory.max")
    used_bytes = _number(control_group / "memory.current")
    if limit_bytes is None or used_bytes is None:
        return HostMemory(total_bytes, free_bytes)
    return HostMemory(
        min(total_bytes, limit_bytes), max(0, min(free_bytes, limit_bytes - used_bytes))
    )


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no control groups, or "max"
        return None


def triton_problem(
    environment: Mapping[str, str] = os.environ, headers: Path | None = None
) -> str | None:
    """A sentence for people, or ``None``. ``headers``: default this Python's."""
    missing = []
    if not _compiler(environment):
        missing.append("a C compiler (gcc, clang, or CC)")
    if not ((headers or _header_folder()) / "Python.h").is_file():
        missing.append(f"the headers of Python {sys.version_info.major}.{sys.version_info.minor}")
    if not missing:
        return None
    return (
        f"GPU kernels cannot be built without {' and '.join(missing)}, and models on CUDA are "
        "slower: install gcc and python3-dev (python3-devel on rpm systems)"
    )


def _compiler(environment: Mapping[str, str]) -> str | None:
    """Triton's own choice: the compiler that ``CC`` names, and nothing else where that is set."""
    path = environment.get("PATH")
    named = environment.get("CC")
    candidates = COMPILERS if named is None else (named,)
    return next((found for name in candidates if (found := shutil.which(name, path=path))), None)


def _header_folder() -> Path:
    """Debian's default scheme adds ``local``, where Python itself puts no headers."""
    scheme = sysconfig.get_default_scheme()
    if scheme == "posix_local":
        scheme = "posix_prefix"
    return Path(sysconfig.get_paths(scheme=scheme)["include"])
