"""Children are started, logged, restarted with back-off, and stopped with all that is theirs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.ports import free_port
from helexa_site.bootstrap import supervisor as supervision
from helexa_site.bootstrap.guardian import Guardian, guard
from helexa_site.bootstrap.serve import GATEWAY_GRACE_S, gateway_spec
from helexa_site.bootstrap.supervisor import (
    BACKOFF,
    Child,
    ChildSpec,
    LogFile,
    StoppingError,
    Supervisor,
)
from inference.settings.gateway import DRAIN_SECONDS
from tests.cases import each_case
from tests.processes import has_ended

pytestmark = pytest.mark.slow

WAIT_TIMEOUT_S = 120.0
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
WITH_GRANDCHILD = (
    "import subprocess, sys, time; a, b = sys.executable, 'import time; time.sleep(60)'; "
    "print('grandchild', subprocess.Popen([a, '-c', b]).pid); time.sleep(60)"
)
HOT = "2026-11-22 10:00:00,123 WARNING gateway fleet: hot"


def python(code: str, *, name: str = "child", grace_s: float = 10.0) -> ChildSpec:
    return ChildSpec(
        name=name,
        command=(sys.executable, "-u", "-c", code),
        environment=dict(os.environ),
        stop_grace_s=grace_s,
    )


def wait_until(is_done: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + WAIT_TIMEOUT_S
    while not is_done():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@each_case(
    ("code", "ending"),
    [
        (f"print('plain'); print('{HOT}'); exit(2)", "ended (exit code 2); restarting in 0.5 s"),
        ("import os; os.kill(os.getpid(), 9)", "ended (killed by SIGKILL); restarting"),
        ("import helexa_missing", "it ends with: ModuleNotFoundError: No module named"),
        ("", "cannot start /nonexistent"),
    ],
)
def test_a_child_that_ends_is_restarted_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, code: str, ending: str
) -> None:
    """With its last line, such as the reason of a traceback, which no log record has."""
    # Whatever else the machine does, the last lines are read.
    monkeypatch.setattr(supervision, "PUMP_DRAIN_TIMEOUT_S", WAIT_TIMEOUT_S)
    spec = python(code) if code else replace(python(code), command=("/nonexistent",))
    with Guardian() as guardian, Supervisor(logs_dir=tmp_path, guardian=guardian) as supervisor:
        started = supervisor.start(spec)
        wait_until(lambda: started.num_failures >= 2)
    shown = capfd.readouterr().out
    assert ending in shown
    log = (tmp_path / "child.log").read_text()
    assert log.count(HOT) == shown.count(HOT), "it is not repeated at the end"
    assert "plain" not in shown
    assert shown.count("it ends with") == shown.count("it ends with: ModuleNotFoundError")


@each_case("how", ["stubborn", "hurried", "obedient"])
def test_a_child_is_stopped_with_its_group(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], how: str
) -> None:
    """A stubborn one after its grace, or at once where the stop is hurried."""
    with Guardian() as guardian, Supervisor(logs_dir=tmp_path, guardian=guardian) as supervisor:
        code = WITH_GRANDCHILD if how == "obedient" else STUBBORN + WITH_GRANDCHILD
        supervisor.start(python(code, grace_s=0.2 if how == "stubborn" else 3600.0))
        log = tmp_path / "child.log"
        wait_until(lambda: log.exists() and log.read_text().endswith("\n"))
        left = psutil.Process(int(log.read_text().split()[-1]))
        stopping = threading.Thread(target=supervisor.stop)
        stopping.start()
        if how == "hurried":
            supervisor.kill()
        stopping.join(WAIT_TIMEOUT_S)
        assert not stopping.is_alive()
        was_killed = "did not stop within 0.2 s; killing it" in capfd.readouterr().out
        assert was_killed == (how == "stubborn")
        wait_until(lambda: has_ended(left))
        with pytest.raises(StoppingError):  # another thread may still start children
            supervisor.start(python("print('up')", name="late"))
        assert not (tmp_path / "late.log").exists()


def test_what_started_last_stops_first_and_a_guardian_leaves_alone_what_was_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr(Child, "stop", lambda child: order.append(child.spec.name))
    with Guardian() as guardian, Supervisor(logs_dir=tmp_path, guardian=guardian) as supervisor:
        children = [supervisor.start(python("", name=name)) for name in ("first", "second")]
    assert order == ["second", "first"]
    for child in children:
        child.kill()
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(command, start_new_session=True) as process:
        guard([f"+{process.pid}\n", f"-{process.pid}\n"])
        assert process.poll() is None
        guard([f"+{process.pid}\n"])
        assert process.wait() == -signal.SIGKILL


def test_full_logs_make_room_gateways_drain_and_restarts_wait_longer_each_time(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "full.log").symlink_to("/dev/full")
    for name, lines in (("child", ("12345", "abcde", "vwxyz")), ("full", ("lost", "lost"))):
        log = LogFile(tmp_path / f"{name}.log", max_bytes=10)
        for line in lines:
            log.write(line)
        log.close()
    assert (tmp_path / "child.log").read_text() == "vwxyz\n"
    assert (tmp_path / "child.log.1").read_text() == "abcde\n"
    assert capfd.readouterr() == ("", "")
    for drain_s in (DRAIN_SECONDS.default, 7):
        monkeypatch.setenv(DRAIN_SECONDS.name, str(drain_s))
        gateway = gateway_spec("127.0.0.1", 1)
        assert DRAIN_SECONDS.read(gateway.environment) == drain_s
        assert gateway.stop_grace_s == drain_s + GATEWAY_GRACE_S
    assert [BACKOFF.wait_s(failures) for failures in (1, 2, 3)] == [0.5, 1.0, 2.0]
    assert BACKOFF.wait_s(100) == BACKOFF.max_s


SERVE = """
import os, signal, sys, threading, time
from pathlib import Path
from helexa_site.bootstrap import console, serve
from helexa_site.bootstrap.arguments import ServeOptions

def interrupt(*_):
    os.kill(os.getpid(), signal.SIGTERM)
    sum(range(1000))  # so that the handler is called here

class Deleted:
    __del__ = interrupt

def while_a_line_is_printed():
    with console._lock:
        interrupt()

def in_another_thread():
    time.sleep(0.5)  # the main thread waits by then
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    time.sleep(60)

moments = {
    "in a finalizer": lambda: bool(Deleted()),
    "while a line is printed": while_a_line_is_printed,
    "twice": lambda: (interrupt(), interrupt()),
    "in another thread": in_another_thread,
    "fails": lambda: 1 / 0,
}
serve.start = lambda *_: moments[sys.argv[3]]()
where = {"host": "127.0.0.1", "port": int(sys.argv[2]), "data_dir": Path(sys.argv[1])}
sys.exit(serve.serve(ServeOptions(**where, with_model=False)))
"""


@each_case(
    "moment", ["in a finalizer", "while a line is printed", "twice", "in another thread", "fails"]
)
def test_a_signal_at_a_bad_moment(tmp_path: Path, moment: str) -> None:
    """A start that fails raises its error."""
    finished = subprocess.run(
        [sys.executable, "-c", SERVE, str(tmp_path), str(free_port()), moment],
        capture_output=True,
        text=True,
        timeout=WAIT_TIMEOUT_S,
    )
    assert finished.returncode == (1 if moment == "fails" else 0), finished.stderr
    if moment == "fails":
        assert "ZeroDivisionError" in finished.stderr
        return
    lines = finished.stdout.splitlines()
    if moment == "twice":  # the second may come before or after all has ended
        lines = [line for line in lines if "SIGTERM again: " not in line]
    assert lines[-2:] == [
        "stopping    SIGTERM: open answers are finished first; again: nothing is",
        "stopped     nothing is left running",
    ]
    assert finished.stderr == ""
