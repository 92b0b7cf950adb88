"""Which servers scripts/bench-gateway measures where one of them is not installed."""

from __future__ import annotations

import importlib.util
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

import benchmarks.gateway.__main__ as command
from benchmarks.gateway.processes import ProcessFailedError


@pytest.fixture
def without_uvicorn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The servers that were started, in an environment of a first start."""
    started: list[str] = []

    class Stage:
        authorization = "Bearer none"

        def start_gateway(self, kind: str, **_: object) -> SimpleNamespace:
            started.append(kind)
            return SimpleNamespace(name=kind)

    @contextmanager
    def stage(_options: object):
        yield Stage()

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else 1)
    monkeypatch.setattr(command, "stage", stage)
    monkeypatch.setattr(command, "_run", lambda *_: {})
    return started


def test_it_is_left_out_with_a_sentence(
    without_uvicorn: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command.main([])
    assert without_uvicorn == ["daphne"]
    assert "uvicorn is not measured: pip install uvicorn brings it" in capsys.readouterr().err


def test_named_it_is_refused(
    without_uvicorn: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["--servers", "uvicorn"])
    assert ended.value.code == 2
    assert "uvicorn is not installed" in capsys.readouterr().err
    assert without_uvicorn == []


def test_a_process_that_fails_is_a_sentence(
    without_uvicorn: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ProcessFailedError("daphne ended with exit code 1")

    monkeypatch.setattr(command, "_run", fail)
    with pytest.raises(SystemExit, match="scripts/bench-gateway: daphne ended"):
        command.main([])


def test_builds_side_by_side_do_not_share_a_database(
    without_uvicorn: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["--beside", "before", "--database-url", "postgresql://localhost/helexa"])
    assert ended.value.code == 2
    assert "a database for each checkout" in capsys.readouterr().err
    assert without_uvicorn == []
