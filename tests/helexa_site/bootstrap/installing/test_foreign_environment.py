"""An environment that another user has made is left alone, and the line says whose it is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from helexa_site.bootstrap.errors import SetUpError
from helexa_site.bootstrap.installing import environment
from tests.cases import each_case


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its Python is there, and may not be run."""
    (tmp_path / "requirements.txt").write_text("helexa-sample==1.0\n")
    made = tmp_path / "venv"
    (made / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (made / "bin").mkdir()
    (made / "bin" / "python").write_text("")
    (made / "pyvenv.cfg").write_text("")
    (made / "pip.log").write_text("")
    monkeypatch.setattr(environment, "REPOSITORY_DIR", tmp_path)
    monkeypatch.setattr(environment, "_reexec", lambda _venv: pytest.fail("it was entered"))
    monkeypatch.setenv("HELEXA_VENV", str(made))
    return made


@each_case("is_inside", [False, True])
@each_case("place", ["", "bin", "pip.log", "lib/python3.11/site-packages"])
def test_it_is_left_as_it_is(
    venv: Path, monkeypatch: pytest.MonkeyPatch, place: str, is_inside: bool
) -> None:
    foreign = venv / place
    before = sorted(venv.rglob("*"))

    def is_not_foreign(path: Path, _mode: int) -> bool:
        return Path(path) != foreign

    monkeypatch.setattr(os, "access", is_not_foreign)
    monkeypatch.setenv("HELEXA_ENVIRONMENT_ATTEMPT", "0")
    monkeypatch.setattr(sys, "prefix", str(venv) if is_inside else "/usr")
    problem = "lacks helexa-sample==1.0" if is_inside else "does not run as this user"
    with pytest.raises(SetUpError, match=problem) as refused:
        environment.ensure_environment("requirements.txt")
    line = str(refused.value)
    assert f"{foreign} cannot be written" in line
    assert foreign.owner() in line
    assert "HELEXA_VENV" in line
    assert sorted(venv.rglob("*")) == before
