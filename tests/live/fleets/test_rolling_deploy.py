"""``scripts/rolling-deploy`` on two neurons, with nothing pinned and clients that ask."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live.fleets.crowd import crowd
from tests.live.fleets.fleet import GB, Fleet, fleet_on_sqlite
from tests.live.serving import REPOSITORY_DIR, WAIT_TIMEOUT_S

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(1800)]

QUESTION = "count for me"
TEXT = "".join(f"{number} " for number in range(20))
MODELS = {"amber": 9 * GB, "birch": 9 * GB}
NEURONS = ("ash", "beech")
CARD_BYTES = 20 * GB
"""Both models fit, so the other neuron holds them meanwhile."""
DEPLOY_TIMEOUT_S = 1200
"""Longer than the gate's own limit of 900 s, whose words say more than a deploy that was ended."""
NEW_KEY = """
from metering.services import account_create, key_create
account = account_create(actor=COMMAND, name='deploys')
scopes = ['fleet:read', 'fleet:write', 'inference']
print(key_create(actor=COMMAND, account=account, scopes=scopes).key)
"""
UPGRADE = 'touch "{folder}/$0.wanted"; until [ -e "{folder}/$0.done" ]; do sleep 0.1; done'
"""Asks this process to restart a neuron, and waits until it has."""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fleet_on_sqlite(tmp_path) as fleet:
        fleet.add_control()
        fleet.add_gateway()
        for name in NEURONS:
            fleet.add_neuron(name, CARD_BYTES)
        for model in fleet.add_models(MODELS, pinned=""):
            model.answers(QUESTION, TEXT, token_s=0.01)
        fleet.wait(lambda: len(fleet.snapshot().neurons) == len(NEURONS), "all are there")
        yield fleet


def test_an_ordinary_fleet_is_upgraded_and_loses_no_request(fleet: Fleet, tmp_path: Path) -> None:
    for model, neuron in zip(MODELS, NEURONS, strict=True):
        fleet.manage("models", "load", model, "--neuron", neuron)
    fleet.wait(lambda: all(map(fleet.ready, MODELS)), "all are loaded")
    before = epochs(fleet)
    with restarting(fleet, tmp_path), crowd(fleet.gateway_urls, [*MODELS], QUESTION, TEXT) as asked:
        fleet.wait(lambda: asked.num_whole() >= 6, "answers come")
        done = rolling_deploy(fleet, tmp_path)
        fleet.wait(lambda: all(map(fleet.ready, MODELS)), "all are loaded still")
    assert done.returncode == 0, done.stdout + done.stderr + fleet.describe()
    assert done.stdout.endswith("all are green\n")
    after = epochs(fleet)
    assert all(after[name] != before[name] for name in NEURONS)
    assert set(asked.counted()) == {"whole"}, asked.counted()
    assert all(ending.num_endings == 1 for ending in asked.endings)


def epochs(fleet: Fleet) -> dict[str, str]:
    """Each neuron's epoch. Waits while the heartbeat of one is late."""

    def of_all() -> dict[str, str] | None:
        found = {view.name: view.epoch for view in fleet.snapshot().neurons}
        return found if found.keys() == {*NEURONS} else None

    found: dict[str, str] = fleet.wait(of_all, "all are there")
    return found


def rolling_deploy(fleet: Fleet, folder: Path) -> subprocess.CompletedProcess[str]:
    key = fleet.shell(*NEW_KEY.strip().splitlines()).strip()
    environment = {"HELEXA_URL": fleet.gateway_urls[0], "HELEXA_API_KEY": key}
    upgrade = f"bash -c '{UPGRADE.format(folder=folder)}' {{}}"
    return subprocess.run(
        [
            str(REPOSITORY_DIR / "scripts" / "rolling-deploy"),
            *("--upgrade", upgrade, "--question", QUESTION, "--word", "19"),
            *NEURONS,
        ],
        env=fleet.environment | environment,
        capture_output=True,
        text=True,
        timeout=DEPLOY_TIMEOUT_S,
        check=False,
    )


@contextmanager
def restarting(fleet: Fleet, folder: Path) -> Iterator[None]:
    """Restarts the neurons that the upgrade asks for, until the block ends."""
    stop = threading.Event()

    def restart_wanted() -> None:
        left = list(NEURONS)
        while not stop.wait(0.1):
            for name in [one for one in left if (folder / f"{one}.wanted").exists()]:
                left.remove(name)
                fleet.programs[name].end()
                fleet.programs[name].start()
                (folder / f"{name}.done").touch()

    thread = threading.Thread(target=restart_wanted, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(WAIT_TIMEOUT_S)
