"""A model that moves between three neurons of unequal size under steady traffic, and a neuron that
is upgraded. Which neuron a model moves to, and what waits or ends meanwhile, is in
``tests/fleet/placement``; what ``scripts/rolling-deploy`` does, in ``tests/fleet/commands``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.fleets.crowd import crowd
from tests.live.fleets.fleet import GB, fleet_on_sqlite

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

QUESTION = "count for me"
TEXT = "".join(f"{number} " for number in range(20))
NEURONS = {"ash": 40 * GB, "beech": 12 * GB, "clover": 11 * GB}


def test_a_model_moves_without_a_gap_and_comes_back_after_a_drain(tmp_path: Path) -> None:
    """To where it is pinned; and to a cramped neuron while the roomy one is drained and started
    again."""
    with fleet_on_sqlite(tmp_path) as fleet:
        fleet.add_control()
        fleet.add_gateway()
        for name, card_bytes in NEURONS.items():
            fleet.add_neuron(name, card_bytes)
        (birch,) = fleet.add_models({"birch": 9 * GB}, pinned="birch")
        birch.answers(QUESTION, TEXT, token_s=0.01)
        fleet.wait(lambda: fleet.ready("birch"), "it is loaded")
        with crowd(fleet.gateway_urls, ["birch"], QUESTION, TEXT) as asked:
            for name in ("beech", "ash"):
                fleet.manage("models", "change", "birch", "--set", f"pinned_on={name}")
                fleet.wait(lambda name=name: fleet.ready("birch") == [name], f"it is on {name}")
            fleet.manage("models", "change", "birch", "--set", "pinned_on=")
            fleet.manage("neurons", "drain", "ash")
            fleet.wait(lambda: fleet.ready("birch") not in ([], ["ash"]), "a cramped one has it")
            fleet.wait(lambda: "ash" not in fleet.ready("birch"), "it has left")
            fleet.programs["ash"].end()
            fleet.programs["ash"].start()
            fleet.wait(lambda: len(fleet.snapshot().neurons) == len(NEURONS), "it is upgraded")
            fleet.manage("neurons", "resume", "ash")
            fleet.wait(lambda: fleet.ready("birch") == ["ash"], "it is back")
        assert set(asked.counted()) == {"whole"}, asked.counted()
