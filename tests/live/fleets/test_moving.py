"""Free memory in pieces, on a fleet of two hosts: an idle model moves, and the large one is loaded
where it stood."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.live.fleets.crowd import ending_of
from tests.live.fleets.fleet import GB, Fleet, fleet_on_sqlite

QUESTION, TEXT = "where are you?", "here and whole "
LARGE_BYTES = 20 * GB
SIZES = {"small": 9 * GB, "large": LARGE_BYTES}


@pytest.mark.slow
def test_an_idle_model_moves_to_the_other_host_for_a_larger_one(tmp_path: Path) -> None:
    """Its engine cannot sleep. The free 15 and 12 GB hold no model of 20 GB; together they hold
    both."""
    with fleet_on_sqlite(tmp_path) as fleet:
        url = fleet.add_gateway()
        fleet.add_control()
        fleet.add_neuron("beast", 24 * GB)
        fleet.add_neuron("mouse", 12 * GB)
        for model in fleet.add_models(SIZES, pinned=""):
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
