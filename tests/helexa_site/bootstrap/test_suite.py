"""When ``manage.py test`` spreads a run over processes."""

from __future__ import annotations

from helexa_site.bootstrap.suite import coverage_last, num_processes, spreading
from tests.cases import each_case


@each_case("arguments", [[], ["-q", "-x"], ["-k", "chat"], ["tests/inference"]])
def test_a_run_of_many_tests_is_spread(arguments: list[str]) -> None:
    option, count, *_ = spreading(arguments)
    assert (option, count) in {("-n", "2"), ("-n", "3")}


@each_case(("free_gib", "count"), [(2, 2), (8, 2), (9, 3), (500, 3)])
def test_a_third_process_where_there_is_memory_for_it(free_gib: int, count: int) -> None:
    assert num_processes(free_gib * 2**30) == count


@each_case("picked", ["tests/conftest.py", "tests/conftest.py::test[a-b]"])
def test_picked_tests_start_at_once(picked: str) -> None:
    assert spreading(["-q", picked]) == []


def test_coverage_is_of_the_packages_and_not_of_the_tests_that_are_picked() -> None:
    assert coverage_last(["--cov", "tests/fleet", "-q"]) == ["tests/fleet", "-q", "--cov"]
    assert coverage_last(["--cov=fleet", "tests/fleet"]) == ["--cov=fleet", "tests/fleet"]
    assert coverage_last(["-q"]) == ["-q"]
