"""The file that serve writes for the commands of its machine."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from helexa_site.bootstrap.data_directory import (
    RUNNING_FILE,
    RunningServe,
    find_running,
    forget_running,
    write_running,
)

URL = "http://127.0.0.1:4711"


@pytest.fixture
def running(tmp_path: Path) -> RunningServe:
    running = RunningServe(url=URL, key="of-serve", process_id=os.getpid())
    write_running(tmp_path, running)
    return running


def test_it_is_found_while_it_runs_and_read_by_its_owner_alone(
    tmp_path: Path, running: RunningServe
) -> None:
    assert find_running(tmp_path) == running
    assert stat.S_IMODE((tmp_path / RUNNING_FILE).stat().st_mode) == 0o600
    assert "of-serve" not in repr(running)
    write_running(tmp_path, replace(running, url="http://127.0.0.1:4712"))
    assert [path.name for path in tmp_path.iterdir()] == [RUNNING_FILE]
    forget_running(tmp_path)
    forget_running(tmp_path)
    assert find_running(tmp_path) is None


def test_one_that_was_killed_or_cannot_be_read_is_none(
    tmp_path: Path, running: RunningServe
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    write_running(tmp_path, replace(running, process_id=ended.pid))
    assert find_running(tmp_path) is None
    for text in ("", "{}", "[]", "not json"):
        (tmp_path / RUNNING_FILE).write_text(text)
        assert find_running(tmp_path) is None
