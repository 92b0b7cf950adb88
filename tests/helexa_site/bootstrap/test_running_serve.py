"""The file that serve writes for the commands of its machine."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.management.commands import chat
from helexa_site.bootstrap.running_serve import (
    RUNNING_FILE,
    RunningServe,
    find_running,
    forget_running,
    write_running,
)

URL = "http://127.0.0.1:4711"
NOT_NAMED: dict[str, Any] = {"url": None, "key": None}


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


def test_a_chat_asks_it_where_nothing_else_is_named(
    tmp_path: Path, running: RunningServe, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HELEXA_URL", "HELEXA_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    settings.CONFIG = replace(settings.CONFIG, data_dir=tmp_path)
    assert chat._where(NOT_NAMED) == (URL, "of-serve")
    assert chat._where(NOT_NAMED | {"key": "hx-1"}) == (URL, "hx-1")
    named = NOT_NAMED | {"url": "http://gpu-box:31313"}
    assert chat._where(named) == ("http://gpu-box:31313", None), "our key is for nobody else"
    monkeypatch.setenv("HELEXA_API_KEY", "hx-2")
    assert chat._where(NOT_NAMED) == (URL, "hx-2")
    forget_running(tmp_path)
    assert chat._where(NOT_NAMED) == (chat.DEFAULT_URL, "hx-2")
