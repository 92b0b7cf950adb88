"""One serve at a time on a data directory, and secrets that no other user can read."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from helexa_site.bootstrap import data_directory
from helexa_site.bootstrap.data_directory import LOCK_FILE, claimed_data_directory
from helexa_site.bootstrap.errors import DataDirectoryError
from tests.cases import each_case


def test_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    with claimed_data_directory(tmp_path / "deep" / "var") as data:
        assert stat.S_IMODE(data.path.stat().st_mode) == 0o700
        assert (data.path / LOCK_FILE).read_text() == f"{os.getpid()}\n"


def test_a_second_claim_names_the_first(tmp_path: Path) -> None:
    with claimed_data_directory(tmp_path):
        with pytest.raises(DataDirectoryError, match=f"process {os.getpid()}"):
            with claimed_data_directory(tmp_path):
                pass
    with claimed_data_directory(tmp_path):
        pass


def test_waits_for_a_guardian_of_a_serve_that_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock's holder by name is dead, and a process that inherited it is about to end."""
    with claimed_data_directory(tmp_path) as data:
        inherited = os.dup(data.lock_fd)
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
    with pytest.raises(DataDirectoryError, match="No space left on device; make room"):
        with claimed_data_directory(tmp_path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(PermissionError):
        with claimed_data_directory(tmp_path):
            raise PermissionError(errno.EACCES, "of something else")


@each_case("place", ["/proc/helexa", "{file}", "{file}/below"])
def test_a_place_that_cannot_be_written(tmp_path: Path, place: str) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(DataDirectoryError, match="cannot write"):
        with claimed_data_directory(Path(place.format(file=file))):
            pass
