"""What one process of a run compiles, the others find."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite

from tests.compiled_once import keep_constants, keep_rewritten


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    path = tmp_path / "test_one.py"
    path.write_text("NUMBER = 738_241\ndef test_one():\n    assert [1] == [2]\n")
    return path


def test_rewritten_assertions_are_kept_for_pytest(
    file: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rewritten_again(*_arguments: object) -> Any:
        raise RuntimeError("it is rewritten again")

    keep_rewritten(pytestconfig, file)
    monkeypatch.setattr(rewrite, "_rewrite_test", rewritten_again)
    hook = pytestconfig.pluginmanager.rewrite_hook
    spec = importlib.util.spec_from_file_location("one_that_is_kept", file, loader=hook)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(AssertionError, match="At index 0 diff: 1 != 2"):
        module.test_one()


def test_constants_are_kept_for_hypothesis(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hypothesis.configuration.__hypothesis_home_directory", tmp_path)
    keep_constants(file)
    (kept,) = (tmp_path / "constants").iterdir()
    assert "738241" in kept.read_text()
