"""Cases of one test all run, and each that fails is reported by its name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import each_case

REPOSITORY_DIR = Path(__file__).resolve().parent.parent
CASES = """
import pytest
from tests.cases import each_case

@each_case("number", [1, 2, 3, pytest.param(4, id="four")])
@each_case("text, kind", [("a", {}), ("b", [])])
def test_some_fail(text, kind, number):
    assert (text, number) not in [("b", 2), ("a", 4)]

@each_case("number", [1, 2])
@pytest.mark.parametrize("other", ["x", "y"])
async def test_the_rest_is_parametrized(other, number):
    pytest.fail("no") if (other, number) == ("y", 1) else None

@each_case("name", ["NAME_A", "NAME_B"])
class TestCases:
    @each_case("value", ["1", "2"])
    def test_have_their_own(self, name, value, tmp_path, monkeypatch, capsys):
        import os
        assert not list(tmp_path.iterdir()) and not {"NAME_A", "NAME_B"} & os.environ.keys()
        (tmp_path / "left").touch()
        monkeypatch.setenv(name, value)
        print(name)
        assert capsys.readouterr().out == f"{name}\\n"
        print("left")

    def test_once_for_each(self, name):
        assert name == "NAME_A"

@each_case("number", [1, 2])
def test_one_is_skipped(number):
    if number == 1:
        pytest.skip("no such device")

@each_case("number", [1, 2])
def test_all_are_skipped(number):
    pytest.skip("no such device")
"""


def test_every_case_runs_and_those_that_fail_are_named(tmp_path: Path) -> None:
    file = tmp_path / "test_them.py"
    file.write_text(CASES)
    words = ["-n0", "-q", "-rfs", "--tb=no", "-p", "no:cacheprovider", "--asyncio-mode=auto"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, f"--rootdir={tmp_path}", "-c", "/dev/null", file],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY_DIR), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        | {"PYTEST_PLUGINS": "pytest_asyncio.plugin,xdist.plugin"},
        check=False,
    )
    failed = [line for line in done.stdout.splitlines() if line.startswith(("SUBF", "FAILED"))]
    assert [line.partition(" - ")[0].replace("test_them.py::", "") for line in failed] == [
        "SUBFAILED[b-kind1-2] test_some_fail",
        "SUBFAILED[a-kind0-four] test_some_fail",
        "FAILED test_some_fail",
        "SUBFAILED[1] test_the_rest_is_parametrized[y]",
        "FAILED test_the_rest_is_parametrized[y]",
        "SUBFAILED[NAME_B] TestCases::test_once_for_each",
        "FAILED TestCases::test_once_for_each",
    ], done.stdout + done.stderr
    assert "3 passed" in done.stdout, done.stdout


def test_a_table_without_cases_or_with_marks_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="no case"):
        each_case("number", [])
    with pytest.raises(ValueError, match="needs parametrize"):
        each_case("number", [pytest.param(1, marks=pytest.mark.slow)])
    with pytest.raises(ValueError, match="takes no number"):
        each_case("number", [1])(lambda: None)
