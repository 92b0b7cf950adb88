"""Test files' asserts are rewritten once, where several processes import them.

    process 1 of 3   file 1, 4, 7 …  ┐
    process 2 of 3   file 2, 5, 8 …  ├─▶ __pycache__ ─▶ each imports all
    process 3 of 3   file 3, 6, 9 …  ┘

Where no copies are kept yet, as in a fresh clone, each process would rewrite every file by itself,
and all of them at the same time. Nobody waits for another: who comes to a file before its copy is
there rewrites it as well, as pytest does alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite

PATTERNS = ("conftest.py", "test_*.py")


def keep_share(config: pytest.Config) -> None:
    """Rewrites this process' share of the files that the run collects."""
    about_process: dict[str, Any] | None = getattr(config, "workerinput", None)
    if about_process is None or sys.dont_write_bytecode:
        return
    number, count = int(about_process["workerid"][2:]), about_process["workercount"]
    for file in list(rewritten_files(config.args))[number % count :: count]:
        keep(config, file)


def rewritten_files(arguments: Sequence[str]) -> Iterator[Path]:
    """Those that the arguments name, and those below them."""
    for argument in arguments:
        path = Path(argument.partition("::")[0]).absolute()
        if path.is_dir():
            yield from sorted(file for pattern in PATTERNS for file in path.rglob(pattern))
        elif path.is_file():
            yield path


def keep(config: pytest.Config, file: Path) -> Path:
    """Where pytest looks when it imports ``file``."""
    kept_dir = rewrite.get_cache_dir(file)
    kept = kept_dir / f"{file.stem}{rewrite.PYC_TAIL}"
    if rewrite._read_pyc(file, kept) is None and rewrite.try_makedirs(kept_dir):
        try:
            source_hash, code = rewrite._rewrite_test(file, config)
        except (SyntaxError, ValueError, OSError):
            return kept  # the import says it better
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source_hash, kept)
    return kept
