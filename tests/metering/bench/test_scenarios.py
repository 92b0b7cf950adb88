"""Stable ids, what a model can be measured in, and which samples are still to take."""

from __future__ import annotations

import pytest

from metering.bench.errors import BenchValueError
from metering.bench.scenarios import (
    DEFAULT_SCENARIOS,
    Cell,
    ScenarioKind,
    parse_scenario,
    parse_scenarios,
    why_not,
    work_left,
)
from tests.cases import each_case

IDS = (
    *DEFAULT_SCENARIOS,
    "prefill:512",
    "concurrency:8",
    "load",
)


@each_case("text", IDS)
def test_an_id_is_read_as_it_is_written(text: str) -> None:
    assert parse_scenario(text).id == text


def test_every_kind_has_an_id_here() -> None:
    assert {parse_scenario(text).kind for text in IDS} == set(ScenarioKind)


@each_case(
    "text",
    [
        "",
        "talk:3",
        "chat",
        "chat:0",
        "chat:x",
        "chat:-1",
        "chat:1:2",
        "chat:128:cold",
        "prefill:8:warm",
        "concurrency:100000",
        "load:3",
        "tools",
        "chat:١٢",
    ],
)
def test_what_is_no_scenario_is_refused(text: str) -> None:
    with pytest.raises(BenchValueError) as caught:
        parse_scenario(text)
    assert caught.value.field == "scenario"


def test_each_is_measured_once() -> None:
    found = parse_scenarios(["load", "chat:8", "load"])
    assert [scenario.id for scenario in found] == ["load", "chat:8"]


@each_case(
    ("text", "capabilities", "is_measured"),
    [
        ("chat:128", {"chat", "completions"}, True),
        ("chat:128", set(), True),
        ("chat:128", {"embeddings"}, False),
        ("chat:128", {"embeddings", "chat"}, True),
        ("load", {"embeddings"}, True),
    ],
)
def test_a_model_is_measured_in_what_it_can(
    text: str, capabilities: set[str], is_measured: bool
) -> None:
    why = why_not(
        parse_scenario(text),
        capabilities=frozenset(capabilities),
        context_tokens=None,
        max_tokens=256,
    )
    assert (why == "") is is_measured


def test_a_prompt_that_does_not_fit_is_not_sent() -> None:
    def fits(text: str) -> bool:
        scenario = parse_scenario(text)
        return not why_not(scenario, capabilities=frozenset(), context_tokens=4352, max_tokens=256)

    assert fits("chat:4096")
    assert not fits("prefill:4097")
    assert fits("concurrency:1000")


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
