"""A test that hangs fails by itself with the place where it hung, and those after it run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.time_limit import END_S, End

pytestmark = pytest.mark.slow

REPOSITORY_DIR = Path(__file__).resolve().parent.parent
CONFTEST = """
from tests.time_limit import (
    pytest_configure, pytest_runtest_call, pytest_runtest_setup, pytest_runtest_teardown
)
"""
HANGING = """
import asyncio, threading, time
import pytest

@pytest.fixture
def never_there():
    time.sleep(1000)

@pytest.fixture
def never_gone():
    yield
    threading.Event().wait()

@pytest.mark.limit_s(0.2)
def test_sleeps():
    time.sleep(1000)

@pytest.mark.limit_s(0.2)
def test_waits_for_a_thread():
    waiting = threading.Thread(target=threading.Event().wait, name="the-other", daemon=True)
    waiting.start()
    waiting.join()

@pytest.mark.limit_s(0.2)
def test_waits_on_the_event_loop():
    async def wait_for_what_never_comes():
        await asyncio.Event().wait()
    async def wait():
        await wait_for_what_never_comes()
    asyncio.run(wait())

@pytest.mark.limit_s(0.2)
def test_setup(never_there):
    pass

@pytest.mark.limit_s(0.2)
def test_teardown(never_gone):
    pass

def test_passes():
    pass
"""
NATIVE = """
import ctypes, signal
import pytest

@pytest.mark.limit_s(0.2)
def test_no_signal_comes_through():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    ctypes.PyDLL(None).sleep(1000)
"""


def run(directory: Path, tests: str) -> subprocess.CompletedProcess[str]:
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_hanging.py").write_text(tests)
    (directory / "pytest.ini").write_text(f"[pytest]\npythonpath = {REPOSITORY_DIR}\n")
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-rA"),
            *("-p", "no:cacheprovider", "-p", "no:django", "-p", "no:xdist"),
        ],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=150,
    )


def test_each_that_hangs_fails_and_reports_where(tmp_path: Path) -> None:
    done = run(tmp_path, HANGING)
    assert "3 failed, 2 passed" in done.stdout, done.stdout
    for name in ("test_sleeps", "test_waits_for_a_thread", "test_waits_on_the_event_loop"):
        assert f"FAILED test_hanging.py::{name}" in done.stdout
    for name in ("test_setup", "test_teardown"):
        assert f"ERROR test_hanging.py::{name}" in done.stdout
    assert "PASSED test_hanging.py::test_passes" in done.stdout
    assert "not done within 0.2 s" in done.stdout
    assert "--- the-other" in done.stdout
    assert "--- task " in done.stdout and "in wait_for_what_never_comes" in done.stdout


def test_native_code_that_never_comes_back_ends_the_process(tmp_path: Path) -> None:
    done = run(tmp_path, NATIVE)
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "test_no_signal_comes_through" in done.stderr


def test_the_end_is_put_off_while_tests_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rarely: each time takes longer than most tests."""
    ends_s, now_s = [0.0], 0.0

    def end_later(seconds: float, **_: object) -> None:
        ends_s.append(now_s + seconds)

    monkeypatch.setattr(
        "tests.time_limit.faulthandler", SimpleNamespace(dump_traceback_later=end_later)
    )
    monkeypatch.setattr("tests.time_limit.processes_per_core", lambda: 1.0)
    end = End(lambda: now_s)
    for _ in range(100):
        end.stay_away(sys.stderr)
        assert ends_s[-1] - now_s >= END_S / 2
        now_s += END_S / 10
    assert len(ends_s) - 1 <= 100 / 5
