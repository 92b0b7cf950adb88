"""When ``manage.py test`` spreads a run over processes."""

from __future__ import annotations

import pytest

from helexa_site.bootstrap.suite import spreading


@pytest.mark.parametrize("arguments", [[], ["-q", "-x"], ["-k", "chat"], ["tests/inference"]])
def test_a_run_of_many_tests_is_spread(arguments: list[str]) -> None:
    assert spreading(arguments)[:2] == ["-n", "2"]


@pytest.mark.parametrize("picked", ["tests/conftest.py", "tests/conftest.py::test[a-b]"])
def test_picked_tests_start_at_once(picked: str) -> None:
    assert spreading(["-q", picked]) == []
