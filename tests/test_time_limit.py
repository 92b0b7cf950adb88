"""A test that hangs fails by itself with the place where it hung, and those after it run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REPOSITORY_DIR = Path(__file__).resolve().parent.parent
CONFTEST = """
from tests.time_limit import pytest_runtest_call, pytest_runtest_setup, pytest_runtest_teardown
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


def test_each_that_hangs_fails_and_reports_where(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_hanging.py").write_text(HANGING)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {REPOSITORY_DIR}\n")
    words = ("-q", "-rA", "-p", "no:cacheprovider", "-p", "no:django", "-p", "no:xdist")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert "3 failed, 2 passed" in done.stdout, done.stdout
    for name in ("test_sleeps", "test_waits_for_a_thread", "test_waits_on_the_event_loop"):
        assert f"FAILED test_hanging.py::{name}" in done.stdout
    for name in ("test_setup", "test_teardown"):
        assert f"ERROR test_hanging.py::{name}" in done.stdout
    assert "PASSED test_hanging.py::test_passes" in done.stdout
    assert "not done within 0.2 s" in done.stdout
    assert "--- the-other" in done.stdout
    assert "--- task " in done.stdout and "in wait_for_what_never_comes" in done.stdout
