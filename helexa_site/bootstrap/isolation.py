"""Keeps a test run apart from every server of this machine, whatever the environment holds.

A run gets none of helexa's settings. Its data directory is a new one, and its Redis address is one
where nothing listens: without them, a process would find the private Redis of a ``serve`` of the
same checkout, or the one on Redis' usual port.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

import psutil

from inference.settings.storage import DATA_DIR, DATABASE_URL, REDIS_URL
from inference.settings.table import OF_TESTS, PREFIX

ISOLATED_BY = "HELEXA_TEST_ISOLATED_BY"
"""Which process made the environment. Those that it starts keep what it gave them."""


def isolate(environment: MutableMapping[str, str]) -> None:
    """Isolates a test run. Only the call in its first process changes ``environment``."""
    if _is_isolated(environment):
        return
    for name in [name for name in environment if name.startswith(PREFIX)]:
        if not name.startswith(tuple(OF_TESTS)):
            del environment[name]
    environment.pop(DATABASE_URL.name, None)
    run_dir = Path(tempfile.mkdtemp(prefix="helexa-tests-"))
    atexit.register(_remove, run_dir, os.getpid())
    environment[ISOLATED_BY] = _identity(psutil.Process())
    environment[DATA_DIR.name] = str(run_dir / "var")
    environment[REDIS_URL.name] = f"unix://{run_dir}/no-redis.sock"


def _is_isolated(environment: MutableMapping[str, str]) -> bool:
    """Whether this process or one that started it made the environment."""
    processes = (psutil.Process(), *psutil.Process().parents())
    return environment.get(ISOLATED_BY) in {_identity(process) for process in processes}


def _identity(process: psutil.Process) -> str:
    """Identifies one process of this machine permanently: its id alone may be used again."""
    return f"{process.pid}-{process.create_time()}"


def _remove(run_dir: Path, process_id: int) -> None:
    if os.getpid() == process_id:  # a fork of this process inherits the call
        shutil.rmtree(run_dir, ignore_errors=True)
