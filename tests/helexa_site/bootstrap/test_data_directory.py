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


def test_it_is_made_for_its_owner_alone_and_claimed_once(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "var"
    with claimed_data_directory(place):
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        assert (place / LOCK_FILE).read_text() == f"{os.getpid()}\n"
        with pytest.raises(BootstrapError, match=f"process {os.getpid()}"):
            with claimed_data_directory(place):
                pass
    with claimed_data_directory(place):
        pass


def test_waits_for_a_guardian_of_a_serve_that_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock's holder by name is dead, and a process that inherited it is about to end."""
    with claimed_data_directory(tmp_path) as lock_fd:
        inherited = os.dup(lock_fd)
        guardian = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(0.5)"], pass_fds=(inherited,)
        )
        os.close(inherited)
        dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=-1)
        (tmp_path / LOCK_FILE).write_bytes(dead.stdout)
    monkeypatch.setattr(data_directory, "ORPHANED_LOCK_WAIT_S", 120.0)
    with claimed_data_directory(tmp_path):
        assert (tmp_path / LOCK_FILE).read_text() == f"{os.getpid()}\n"
        guardian.wait(120)


def test_a_disk_that_is_full_is_reported_as_such(tmp_path: Path) -> None:
    with pytest.raises(BootstrapError, match="No space left on device; make room"):
        with claimed_data_directory(tmp_path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(PermissionError):
        with claimed_data_directory(tmp_path):
            raise PermissionError(errno.EACCES, "of something else")


@each_case("place", ["/proc/helexa", "{file}", "{file}/below"])
def test_a_place_that_cannot_be_written(tmp_path: Path, place: str) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(BootstrapError, match="cannot write"):
        with claimed_data_directory(Path(place.format(file=file))):
            pass


HERE = "http://127.0.0.1:4711"
THERE = "http://gpu-box:31313"


@pytest.fixture
def running(tmp_path: Path) -> RunningServe:
    running = RunningServe(url=HERE, key="of-serve", process_id=os.getpid())
    write_running(tmp_path, running)
    return running


def test_it_is_found_while_it_runs_and_read_by_its_owner_alone(
    tmp_path: Path, running: RunningServe
) -> None:
    assert find_running(tmp_path) == running
    assert stat.S_IMODE((tmp_path / RUNNING_FILE).stat().st_mode) == 0o600
    assert "of-serve" not in repr(running)
    for _ in range(2):
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
    ],
)
def test_which_server_a_command_asks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    url: str | None,
    key: str | None,
    variables: dict[str, str],
    asked: tuple[str, str | None],
) -> None:
    write_running(tmp_path, RunningServe(url=HERE, key="of-serve", process_id=os.getpid()))
    for name in ("HELEXA_URL", "HELEXA_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert server_and_key(url, key, tmp_path) == asked
    assert server_url(url, tmp_path) == asked[0]
    forget_running(tmp_path)
    assert server_url(url, tmp_path) == (DEFAULT_URL if asked[0] == HERE else asked[0])


@each_case("url", ["gpu-box:31313", "ftp://gpu-box", "http://", "http://gpu-box:0"])
def test_a_url_that_no_server_can_have_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(CommandError, match="is not like http"):
        server_url(url, tmp_path)
