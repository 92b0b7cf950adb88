"""How long a load still takes: by the last one there, then by its stage's rate. One table."""

from __future__ import annotations

from typing import Any

from fleet.live.load_estimates import NO_ESTIMATE, LoadEstimate, load_estimate
from tests.cases import each_case

TABLE: dict[str, tuple[dict[str, Any], LoadEstimate]] = {
    "nothing is known": ({"stage": "preflight"}, NO_ESTIMATE),
    "an engine that starts": (
        {"stage": "starting", "engine_elapsed_s": 2.0, "last_load_s": 40.0},
        LoadEstimate(share=0.05, left_s=38.0),
    ),
    "its last load knows better than the stage's rate": (
        {
            "stage": "weights",
            "done": 9,
            "total": 10,
            "stage_elapsed_s": 9.0,
            "engine_elapsed_s": 10.0,
            "last_load_s": 40.0,
        },
        LoadEstimate(share=0.25, left_s=30.0),
    ),
    "it takes longer than the last one": (
        {
            "stage": "weights",
            "done": 9,
            "total": 10,
            "stage_elapsed_s": 45.0,
            "engine_elapsed_s": 50.0,
            "last_load_s": 40.0,
        },
        LoadEstimate(left_s=5.0),
    ),
    "it takes longer in a stage without a rate": (
        {"stage": "warmup", "engine_elapsed_s": 50.0, "last_load_s": 40.0},
        NO_ESTIMATE,
    ),
    "the load comes after the download": (
        {
            "stage": "downloading",
            "done": 25,
            "total": 100,
            "stage_elapsed_s": 10.0,
            "last_load_s": 40.0,
        },
        LoadEstimate(left_s=70.0),
    ),
    "nobody knows when its turn comes": ({"stage": "queued", "last_load_s": 40.0}, NO_ESTIMATE),
    "waking is no load": (
        {"stage": "waking", "engine_elapsed_s": 2.0, "last_load_s": 40.0},
        NO_ESTIMATE,
    ),
    "clocks that differ": (
        {"stage": "starting", "engine_elapsed_s": -1.0, "last_load_s": 40.0},
        LoadEstimate(share=0.0, left_s=40.0),
    ),
}


@each_case(("known", "estimate"), TABLE.values(), ids=TABLE.keys())
def test_estimates(known: dict[str, Any], estimate: LoadEstimate) -> None:
    nothing = {"done": 0, "total": 0, "stage_elapsed_s": None, "engine_elapsed_s": None}
    assert load_estimate(**{**nothing, "last_load_s": None, **known}) == estimate
