"""Files of bills: torn, damaged, full disks, and processes that are killed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as checks
from hypothesis import strategies as st

from metering.ledger.entries import Settle
from metering.ledger.spool_files import DAMAGED_SUFFIX, SpoolFile, spool_paths
from metering.prices import Prices
from tests.metering.operations import settle

BILLS = [
    settle("r1"),
    settle("r2", prices=Prices(input_micro_usd=3), model="m\n\ud800\0", prompt_tokens=2**70),
    settle("r3", budgets=(), time_to_first_token_ms=None),
]


def written(directory: Path, bills: list[Settle] = BILLS) -> Path:
    file = SpoolFile.create(directory, "g1")
    for bill in bills:
        file.append([bill])
    file.close()
    return file.path


def adopted(path: Path) -> SpoolFile:
    file = SpoolFile.adopt(path)
    assert file is not None
    return file


def test_bills_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = written(tmp_path / "new")
    assert list(spool_paths(path.parent)) == [path]
    file = adopted(path)
    assert file.read() == BILLS
    file.remove()
    assert list(path.parent.iterdir()) == []


def test_nobody_adopts_the_file_of_a_gateway_that_lives(tmp_path: Path) -> None:
    file = SpoolFile.create(tmp_path, "g1")
    assert SpoolFile.adopt(file.path) is None
    file.close()
    again = adopted(file.path)
    assert SpoolFile.adopt(file.path) is None
    again.remove()
    assert SpoolFile.adopt(file.path) is None


CHILD = """
import os, signal, sys
from pathlib import Path
from metering.ledger.spool_files import SpoolFile
from tests.metering.operations import settle
file = SpoolFile.create(Path(sys.argv[1]), "g1")
file.append([settle("r1"), settle("r2")])
print("written", flush=True)
sys.stdin.read(1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_appended_is_there(tmp_path: Path) -> None:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "helexa_site.settings"}
    command = [sys.executable, "-c", "import django; django.setup()\n" + CHILD, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == b"written\n"
        (path,) = spool_paths(tmp_path)
        assert SpoolFile.adopt(path) is None
        child.stdin.write(b"x")
        child.stdin.flush()
        child.wait()
    file = adopted(path)
    assert [bill.request_id for bill in file.read()] == ["r1", "r2"]
    file.close()


@checks(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(num_bytes=st.integers(min_value=0, max_value=2000))
def test_of_a_torn_file_the_whole_bills_are_read(tmp_path: Path, num_bytes: int) -> None:
    path = written(tmp_path)
    data = path.read_bytes()[:num_bytes]
    path.write_bytes(data)
    file = adopted(path)
    assert file.read() == BILLS[: data.count(b"\n")]
    file.remove()
    assert not path.exists() and not path.with_suffix(DAMAGED_SUFFIX).exists()


@pytest.mark.parametrize("line", [b"", b"x", b"00000000 {}", b'3a5bcc4e {"request_id": 1}'])
def test_a_damaged_line_costs_no_other_and_the_file_is_kept(
    tmp_path: Path, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path)
    first, *others = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + line + b"\n" + b"".join(others))
    file = adopted(path)
    assert file.read() == BILLS
    assert "1 bills cannot be read; the file is kept" in caplog.text
    file.remove()
    assert not path.exists() and line in path.with_suffix(DAMAGED_SUFFIX).read_bytes()


def test_a_disk_that_is_full_leaves_no_half_bill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SpoolFile.create(tmp_path, "g1")
    file.append(BILLS[:1])
    write = os.write

    def half(fd: int, data: memoryview) -> int:
        if len(data) < 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[: len(data) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(OSError, match="No space"):
            file.append(BILLS[1:2])
    file.append(BILLS[2:])
    file.close()
    again = adopted(file.path)
    assert again.read() == [BILLS[0], BILLS[2]]
    again.close()
