"""Searches the files of a folder for a pattern. A separate program, which can be killed: a model's
pattern may keep Python's ``re`` busy without end.

    python searching.py '[pattern, folder, glob, whether it ignores case]'
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_MATCHES = 200
MAX_LINE_CHARACTERS = 300
MAX_FILE_BYTES = 4 * 1024 * 1024
SKIPPED_FOLDERS = frozenset(
    {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", "target", ".tox"}
)


def files_of(folder: Path) -> Iterator[Path]:
    """Files that git would track, in a git repository; else all but the usual artefacts."""
    listing = _git_listing(folder)
    if listing is not None:
        yield from (folder / name for name in listing)
        return
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS)
        yield from (Path(parent) / name for name in sorted(names))


def _git_listing(folder: Path) -> list[str] | None:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return sorted({os.fsdecode(name) for name in done.stdout.split(b"\0") if name})


def matches_glob(path: Path, folder: Path, glob: str) -> bool:
    if not glob:
        return True
    name = path.relative_to(folder).as_posix() if "/" in glob else path.name
    return fnmatch.fnmatchcase(name, glob.removeprefix("**/"))


def lines_of(path: Path) -> list[str]:
    """Binary, large, special and missing files have none."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
            return []
        data = path.read_bytes()
    except OSError:
        return []
    return [] if b"\0" in data[:8192] else data.decode("utf-8", "replace").splitlines()


def search(pattern: re.Pattern[str], folder: Path, glob: str) -> Iterator[str]:
    if folder.is_file():
        paths, folder = iter([folder]), folder.parent
    else:
        paths = (path for path in files_of(folder) if matches_glob(path, folder, glob))
    for path in paths:
        for number, line in enumerate(lines_of(path), 1):
            if pattern.search(line):
                name = path.relative_to(folder).as_posix()
                yield f"{name}:{number}: {line.strip()[:MAX_LINE_CHARACTERS]}"


def main() -> None:
    written, folder, glob, ignores_case = json.loads(sys.argv[1])
    try:
        pattern = re.compile(written, re.IGNORECASE if ignores_case else 0)
    except (re.error, RecursionError, OverflowError) as error:
        sys.exit(f"the pattern is no regular expression: {error}")
    for count, found in enumerate(search(pattern, Path(folder), glob), 1):
        if count > MAX_MATCHES:
            print(f"[over {MAX_MATCHES} lines match; narrow the pattern, the path or the glob]")
            return
        sys.stdout.write(found.encode("utf-8", "replace").decode() + "\n")


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    main()
