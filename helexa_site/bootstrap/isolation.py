"""Isolates a test run from every server of this machine, in any environment.

A run gets none of helexa's settings. Its data directory is new, and nothing listens at its Redis
address: otherwise a process would find the private Redis of a ``serve`` of the same checkout, or
the one on Redis' usual port.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from inference.settings.storage import DATA_DIR, DATABASE_URL, REDIS_URL
from inference.settings.table import OF_TESTS, PREFIX

ISOLATED_BY = "HELEXA_TEST_ISOLATED_BY"
"""The directory of the run that made the environment, inherited by its processes."""


def isolate(environment: MutableMapping[str, str]) -> None:
    made = environment.get(ISOLATED_BY, "")
    if made and environment.get(DATA_DIR.name) == f"{made}/var" and Path(made).is_dir():
        return
    for name in [name for name in environment if name.startswith(PREFIX)]:
        if not name.startswith(tuple(OF_TESTS)):
            del environment[name]
    environment.pop(DATABASE_URL.name, None)
    run_dir = Path(tempfile.mkdtemp(prefix="helexa-tests-"))
    atexit.register(_remove, run_dir, os.getpid())
    environment[ISOLATED_BY] = str(run_dir)
    environment[DATA_DIR.name] = str(run_dir / "var")
    environment[REDIS_URL.name] = f"unix://{run_dir}/no-redis.sock"


def _remove(run_dir: Path, process_id: int) -> None:
    if os.getpid() == process_id:  # a fork of this process inherits the call
        shutil.rmtree(run_dir, ignore_errors=True)
