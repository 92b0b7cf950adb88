"""A signal ends serve whatever is running when it comes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.ports import free_port
from helexa_site.bootstrap.serve import GATEWAY_GRACE_S, gateway_spec
from inference.settings.gateway import DRAIN_SECONDS
from tests.cases import each_case

END_TIMEOUT_S = 150.0
SERVE = """
import os, signal, sys, threading, time
from pathlib import Path
from helexa_site.bootstrap import console
from helexa_site.bootstrap import serve
from helexa_site.bootstrap.arguments import ServeOptions

def interrupt(*_):
    os.kill(os.getpid(), signal.SIGTERM)
    sum(range(1000))  # so that the handler is called here

class Deleted:
    def __del__(self):
        interrupt()

def in_a_finalizer():
    Deleted()

def while_a_line_is_printed():
    with console._lock:
        interrupt()

def twice():
    interrupt()
    interrupt()

def in_another_thread():
    time.sleep(0.5)  # the main thread waits by then
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    time.sleep(60)

def fails():
    1 / 0

serve.start = lambda *_: globals()[sys.argv[3]]()
options = ServeOptions(
    host="127.0.0.1", port=int(sys.argv[2]), data_dir=Path(sys.argv[1]), with_model=False
)
sys.exit(serve.serve(options))
"""


@pytest.mark.slow
@each_case(
    "moment", ["in_a_finalizer", "while_a_line_is_printed", "twice", "in_another_thread", "fails"]
)
def test_a_signal_at_a_bad_moment(tmp_path: Path, moment: str) -> None:
    """A start that fails raises its error."""
    finished = subprocess.run(
        [sys.executable, "-c", SERVE, str(tmp_path), str(free_port()), moment],
        capture_output=True,
        text=True,
        timeout=END_TIMEOUT_S,
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


@each_case("drain_s", [DRAIN_SECONDS.default, 7])
def test_its_gateway_drains_as_long_as_any_other(
    monkeypatch: pytest.MonkeyPatch, drain_s: int
) -> None:
    monkeypatch.setenv(DRAIN_SECONDS.name, str(drain_s))
    gateway = gateway_spec("127.0.0.1", 1)
    assert DRAIN_SECONDS.read(gateway.environment) == drain_s
    assert gateway.stop_grace_s == drain_s + GATEWAY_GRACE_S
