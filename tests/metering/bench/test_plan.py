"""Tests that cells run until they have their samples, and then no more."""

from __future__ import annotations

from metering.bench.scenarios import Cell, parse_scenario, work_left


def cell(scenario: str = "chat:128", build: str = "b1", model: str = "m") -> Cell:
    return Cell(target="beast", build=build, model=model, scenario=parse_scenario(scenario))


def test_a_cell_is_measured_until_it_has_its_samples() -> None:
    one = cell()
    for num_done, missing in [(0, [5]), (3, [2]), (5, []), (9, [])]:
        work = work_left([one], {one.key: num_done}, samples_per_build=5)
        assert [left.num_samples for left in work] == missing


def test_another_build_is_another_cell() -> None:
    done = {cell().key: 5}
    work = work_left([cell(), cell(build="b2")], done, samples_per_build=5)
    assert [left.cell.build for left in work] == ["b2"]


def test_a_cell_that_is_named_twice_is_measured_once() -> None:
    assert len(work_left([cell(), cell()], {}, samples_per_build=5)) == 1


def test_models_are_not_swapped_more_than_needed_and_unloading_comes_last() -> None:
    cells = [
        cell("load", model="a"),
        cell(model="b"),
        cell("chat:9", model="a"),
        cell("load", model="b"),
    ]
    work = work_left(cells, {}, samples_per_build=1)
    assert [(left.cell.model, left.cell.scenario.id) for left in work] == [
        ("a", "chat:9"),
        ("a", "load"),
        ("b", "chat:128"),
        ("b", "load"),
    ]
