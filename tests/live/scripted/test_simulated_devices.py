"""Simulated cards behave as a driver's: what a living process took is not free."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.scripted.simulated_devices import VARIABLE, SimulatedDevices

TWO = '{"devices": [{"kind": "cuda", "memory_bytes": 100}, {"kind": "cuda", "memory_bytes": 50}]}'


@pytest.fixture
def cards(tmp_path: Path) -> SimulatedDevices:
    path = tmp_path / "devices.json"
    path.write_text(TWO)
    made = SimulatedDevices.from_environment({VARIABLE: str(path)})
    assert made is not None
    return made


def test_what_a_process_takes_is_gone_until_it_ends(cards: SimulatedDevices) -> None:
    cards.take("cuda:1", 30)
    assert [device.free_memory_bytes for device in cards.devices()] == [100, 20]
    assert cards.taken_bytes("cuda:1") == {os.getpid(): 30}
    process = subprocess.Popen([sys.executable, "-c", ""])
    (cards.path.with_name(f"{cards.path.name}.taken") / "cuda:1" / str(process.pid)).write_text("9")
    process.wait()
    assert [device.free_memory_bytes for device in cards.devices()] == [100, 20]


def test_what_is_taken_on_the_simulated_host_is_held(cards: SimulatedDevices) -> None:
    cards.take("cpu", 7)
    assert cards.held_bytes(os.getpid()) == 7
    assert cards.held_bytes(1) == 0


def test_nothing_is_simulated_unless_it_is_asked_for() -> None:
    assert SimulatedDevices.from_environment({}) is None


@pytest.mark.parametrize("content", [None, "{}", '{"devices": [{"kind": "tpu"}]}'])
def test_a_file_without_anything_of_use_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "devices.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=VARIABLE):
        SimulatedDevices.from_environment({VARIABLE: str(path)})
