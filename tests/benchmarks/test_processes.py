"""Processes that a measurement starts: the error of a subject that ends, vLLM's environment, and a
port that is free."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from benchmarks import ports
from benchmarks.subject import READY_LINE, SubjectError, SubjectProcess
from benchmarks.vllm_interpreter import process_environment


@pytest.mark.slow
def test_a_subject_that_cannot_be_opened_or_broke_reports_it() -> None:
    with pytest.raises(SubjectError, match="no_such_subject ended with exit code 1"):
        SubjectProcess("no_such_subject", {})
    subject = SubjectProcess("helexa_http", {"url": "http://127.0.0.1:1", "model": "m"})
    assert subject.description == "helexa over HTTP (m)"
    for _ in range(2):
        with pytest.raises(SubjectError, match="helexa_http ended"):
            subject.ask(measure="no_such_question")
    subject.close()


def test_a_subject_may_be_another_checkouts(tmp_path: Path) -> None:
    package = tmp_path / "before" / "benchmarks"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    answer = READY_LINE + '{"description": "theirs"}'
    ends = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    (package / "subject.py").write_text(f"print({answer!r}, flush=True)\n{ends}")
    subject = SubjectProcess("helexa_engine", {}, checkout=tmp_path / "before")
    assert (subject.kind, subject.description) == ("helexa_engine, before", "theirs")
    with pytest.raises(SubjectError, match="helexa_engine, before ended by SIGILL"):
        subject.ask(measure="decode")
    subject.close()


def test_vllms_threads_have_a_core_each_where_the_wheel_brought_openmp(tmp_path: Path) -> None:
    python, cache = tmp_path / "bin" / "python", tmp_path / "cache"
    environment = process_environment(python, 2, cache)
    assert environment["OMP_NUM_THREADS"] == "2"
    assert "KMP_AFFINITY" not in environment, "a library that is missed is not preloaded"
    assert environment["VLLM_CACHE_ROOT"] == str(cache)
    openmp = tmp_path / "lib" / "libiomp5.so"
    openmp.parent.mkdir()
    openmp.touch()
    environment = process_environment(python, 1, cache)
    assert environment["LD_PRELOAD"] == str(openmp)
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["KMP_AFFINITY"].startswith("granularity=fine,explicit,proclist=[")


def test_a_port_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_port, other_port = ports.free_port(), ports.free_port()
    with (
        socket.create_server((ports.HOST, 0)) as server,
        socket.create_connection(server.getsockname()) as connection,
    ):
        assert server.getsockname()[1] not in ports.PORTS
        assert connection.getsockname()[1] not in ports.PORTS, "connections get others"
    monkeypatch.setattr(ports, "PORTS", [taken_port, other_port])
    with socket.create_server((ports.HOST, taken_port)):
        assert {ports.free_port() for _ in range(20)} == {other_port}
