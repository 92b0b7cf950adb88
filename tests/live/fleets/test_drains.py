"""Models that move: three neurons of unequal size, of which one alone can hold a model, with drains
under steady traffic and a model that is pinned elsewhere; and two hosts whose free memory is in
pieces, where an idle model moves and the large one is loaded where it stood."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.live.fleets.crowd import crowd, ending_of
from tests.live.fleets.fleet import GB, Fleet, fleet_on_sqlite

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

QUESTION, LONG_QUESTION = "count for me", "count for long"
TEXT = "".join(f"{number} " for number in range(20))
LONG_TEXT = TEXT * 50
LARGE_BYTES = 20 * GB
NEURONS = {"ash": 40 * GB, "beech": 12 * GB, "clover": 11 * GB}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Each test leaves all neurons undrained and the models pinned nowhere."""
    with fleet_on_sqlite(tmp_path_factory.mktemp("drains")) as fleet:
        fleet.add_control()
        fleet.add_gateway()
        for name, card_bytes in NEURONS.items():
            fleet.add_neuron(name, card_bytes)
        for model in fleet.add_models({"amber": 28 * GB, "birch": 9 * GB}, pinned="birch"):
            model.answers(QUESTION, TEXT, token_s=0.01)
            model.answers(LONG_QUESTION, LONG_TEXT, token_s=0.1)
        fleet.wait(lambda: fleet.ready("birch"), "the pinned one is loaded")
        yield fleet


def drained_at(fleet: Fleet, name: str) -> str | None:
    listed = json.loads(fleet.manage("neurons", "list", "--json"))
    found: str | None = next(one["drained_at"] for one in listed if one["name"] == name)
    return found


def test_a_drain_ends_under_steady_traffic_and_who_came_meanwhile_is_served_after(
    fleet: Fleet,
) -> None:
    with crowd(fleet.gateway_urls, ["amber"], QUESTION, TEXT) as asked:
        fleet.wait(lambda: asked.num_whole() >= 6, "answers come")
        fleet.manage("neurons", "drain", "ash")
        fleet.wait(lambda: drained_at(fleet, "ash"), "it is drained")
        num_before = asked.num_whole()
        fleet.wait(lambda: fleet.ready("amber") == [], "it has left")
        assert asked.num_whole() == num_before, "nobody is served there meanwhile"
        fleet.manage("neurons", "resume", "ash")
        fleet.wait(lambda: asked.num_whole() >= num_before + 12, "answers come again")
    assert set(asked.counted()) == {"whole"}, asked.counted()


def test_what_still_runs_is_ended_where_the_operator_wants_it(fleet: Fleet) -> None:
    (url,) = fleet.gateway_urls
    with ThreadPoolExecutor() as pool:
        asked = [
            pool.submit(ending_of, url, "amber", LONG_QUESTION, LONG_TEXT, stream=stream)
            for stream in (True, False)
        ]

        def num_running() -> int:
            views = [view for view in fleet.snapshot().replicas() if view.model == "amber"]
            return sum(view.in_flight for view in views)

        fleet.wait(lambda: num_running() == 2, "both are answered")
        assert "amber (2 requests)" in fleet.manage("neurons", "drain", "ash", "--now")
        assert [one.result().how for one in asked] == ["draining", "draining"]
    fleet.wait(lambda: drained_at(fleet, "ash"), "it is drained")
    fleet.manage("neurons", "resume", "ash")


def test_a_model_moves_without_a_gap_and_comes_back_after_a_drain(fleet: Fleet) -> None:
    """To where it is pinned; and to a cramped neuron while the roomy one is drained."""
    with crowd(fleet.gateway_urls, ["birch"], QUESTION, TEXT) as asked:
        for name in ("beech", "ash"):
            fleet.manage("models", "change", "birch", "--set", f"pinned_on={name}")
            fleet.wait(lambda name=name: fleet.ready("birch") == [name], f"it is on {name}")
        fleet.manage("models", "change", "birch", "--set", "pinned_on=")
        fleet.manage("neurons", "drain", "ash")
        fleet.wait(lambda: fleet.ready("birch") not in ([], ["ash"]), "a cramped one has it")
        fleet.wait(lambda: "ash" not in fleet.ready("birch"), "it has left")
        fleet.manage("neurons", "resume", "ash")
        fleet.wait(lambda: fleet.ready("birch") == ["ash"], "it is back")
    assert set(asked.counted()) == {"whole"}, asked.counted()


def test_an_idle_model_moves_to_the_other_host_for_a_larger_one(tmp_path: Path) -> None:
    """Its engine cannot sleep. The free 15 and 12 GB hold no model of 20 GB; together they hold
    both."""
    with fleet_on_sqlite(tmp_path) as fleet:
        url = fleet.add_gateway()
        fleet.add_control()
        fleet.add_neuron("beast", 24 * GB)
        fleet.add_neuron("mouse", 12 * GB)
        for model in fleet.add_models({"small": 9 * GB, "large": LARGE_BYTES}, pinned=""):
            model.answers(QUESTION, TEXT, token_s=0.01)
        fleet.manage("models", "change", "large", "--set", f"vram_mb={LARGE_BYTES >> 20}")
        fleet.wait(lambda: len(fleet.snapshot().neurons) == 2, "both neurons are there")
        fleet.manage("models", "load", "small", "--neuron", "beast")

        assert ending_of(url, "large", QUESTION, TEXT, stream=True).how == "whole", fleet.describe()
        fleet.wait(lambda: fleet.ready("small") == ["mouse"], "the small one has moved")
        fleet.wait(lambda: fleet.ready("large") == ["beast"], "the large one is there")
        assert ending_of(url, "small", QUESTION, TEXT, stream=True).how == "whole", fleet.describe()

        jobs = fleet.wait(lambda: ended_jobs(fleet), "all jobs have ended")
        notes = {(job["model"], job["neuron"]): job["note"] for job in jobs if job["note"]}
        assert notes == {
            ("large", "beast"): "small makes room and moves to mouse",
            ("small", "mouse"): "Moves from beast, where large needs its room",
        }
        assert not [job for job in jobs if job["status"] != "succeeded"], jobs


def ended_jobs(fleet: Fleet) -> list[dict[str, Any]] | None:
    """All load jobs; ``None`` while the control has yet to record the end of some."""
    jobs: list[dict[str, Any]] = json.loads(fleet.manage("jobs", "list", "--json"))
    return jobs if all(job["finished_at"] for job in jobs) else None
