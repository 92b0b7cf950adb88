"""One serve on a data directory, its private files there, and which server a command asks."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from django.core.management.base import CommandError

from helexa_site.bootstrap import data_directory
from helexa_site.bootstrap.data_directory import (
    LOCK_FILE,
    RUNNING_FILE,
    RunningServe,
    claimed_data_directory,
    find_running,
    forget_running,
    write_running,
)
from helexa_site.bootstrap.errors import BootstrapError
from helexa_site.server_url import DEFAULT_URL, server_and_key, server_url
from tests.cases import each_case

HERE, THERE = "http://127.0.0.1:4711", "http://gpu-box:31313"
RUNNING = RunningServe(url=HERE, key="of-serve", process_id=os.getpid())


def claim(place: Path) -> None:
    with claimed_data_directory(place):
        assert (place / LOCK_FILE).read_text() == f"{os.getpid()}\n"


def test_it_is_made_for_its_owner_alone_and_claimed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guardian of a serve that died, whose process is named in the lock, is waited for."""
    place = tmp_path / "deep" / "var"
    monkeypatch.setattr(data_directory, "ORPHANED_LOCK_WAIT_S", 0.1)
    with claimed_data_directory(place) as lock_fd:
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        with pytest.raises(BootstrapError, match=f"process {os.getpid()}"):
            claim(place)
        inherited = os.dup(lock_fd)
        code = "import sys, time; sys.stdin.read(1); time.sleep(0.3)"
        guardian = subprocess.Popen(
            [sys.executable, "-c", code], pass_fds=(inherited,), stdin=subprocess.PIPE
        )
        os.close(inherited)
        (place / LOCK_FILE).write_text("4194304\n")
    with pytest.raises(BootstrapError, match="process 4194304"):
        claim(place)
    monkeypatch.setattr(data_directory, "ORPHANED_LOCK_WAIT_S", 120.0)
    assert guardian.stdin is not None
    guardian.stdin.close()
    claim(place)
    guardian.wait(120)


def test_a_disk_that_is_full_is_reported_as_such(tmp_path: Path) -> None:
    with pytest.raises(BootstrapError, match="No space left on device; make room"):
        with claimed_data_directory(tmp_path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(PermissionError):
        with claimed_data_directory(tmp_path):
            raise PermissionError(errno.EACCES, "of something else")
    claim(tmp_path)
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", Path("/proc/helexa")):
        with pytest.raises(BootstrapError, match="cannot write"):
            claim(place)


def test_a_running_serve_is_found_by_its_owner_alone(tmp_path: Path) -> None:
    """Not one that was killed, or whose file cannot be read."""
    write_running(tmp_path, RUNNING)
    assert find_running(tmp_path) == RUNNING
    assert stat.S_IMODE((tmp_path / RUNNING_FILE).stat().st_mode) == 0o600
    assert "of-serve" not in repr(RUNNING)
    for _ in range(2):
        forget_running(tmp_path)
        assert find_running(tmp_path) is None
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    write_running(tmp_path, replace(RUNNING, process_id=ended.pid))
    assert find_running(tmp_path) is None
    for text in ("", "{}", "[]"):
        (tmp_path / RUNNING_FILE).write_text(text)
        assert find_running(tmp_path) is None


@each_case(
    ("url", "key", "variables", "asked"),
    [
        (None, None, {}, (HERE, "of-serve")),
        (None, "hx-1", {}, (HERE, "hx-1")),
        (None, None, {"HELEXA_API_KEY": "hx-2"}, (HERE, "hx-2")),
        (None, "hx-1", {"HELEXA_API_KEY": "hx-2"}, (HERE, "hx-1")),
        # Another server never gets the key of the serve here.
        (THERE, None, {}, (THERE, None)),
        (None, None, {"HELEXA_URL": THERE}, (THERE, None)),
        (THERE, None, {"HELEXA_URL": "http://other:31313"}, (THERE, None)),
        *((url, None, {}, None) for url in ("gpu-box:1", "ftp://gpu-box", "http://")),
        ("http://gpu-box:0", None, {}, None),
    ],
)
def test_which_server_a_command_asks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    url: str | None,
    key: str | None,
    variables: dict[str, str],
    asked: tuple[str, str | None] | None,
) -> None:
    write_running(tmp_path, RUNNING)
    for name in ("HELEXA_URL", "HELEXA_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if asked is None:
        with pytest.raises(CommandError, match="is not like http"):
            server_url(url, tmp_path)
        return
    assert server_and_key(url, key, tmp_path) == asked
    assert server_url(url, tmp_path) == asked[0]
    forget_running(tmp_path)
    assert server_url(url, tmp_path) == (DEFAULT_URL if asked[0] == HERE else asked[0])
