"""Simulated cards behave as a driver's: what a living process took is not free, and what is taken
of one twice is found."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from inference.protocol.load import LoadSpec
from tests.live.scripted.script import Script
from tests.live.scripted.simulated_devices import (
    VARIABLE,
    NoRoomError,
    SimulatedDevices,
    Taken,
    overcommitted,
    take_memory,
)

SPEC = LoadSpec(job_id="j", model="m", source="path:/m", devices=["cuda:1"])
SCRIPT = Script(end_token="<e>", context_tokens=10, weight_bytes=60, kv_bytes=30)


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedDevices:
    path = tmp_path / "devices.json"
    sizes = [50, 100]
    path.write_text(
        json.dumps({"devices": [{"kind": "cuda", "memory_bytes": size} for size in sizes]})
    )
    monkeypatch.setenv(VARIABLE, str(path))
    return SimulatedDevices(path)


def free_bytes(cards: SimulatedDevices) -> list[int]:
    return [device.free_memory_bytes for device in cards.devices()]


def test_weights_and_kv_are_taken_of_the_device_that_was_chosen(cards: SimulatedDevices) -> None:
    limited = msgspec.structs.replace(SPEC, memory_limit_bytes=70)
    assert take_memory(limited, SCRIPT) == Taken("cuda:1", 60, 10)
    assert free_bytes(cards) == [50, 30]
    assert overcommitted(cards) == {}
    beside = msgspec.structs.replace(SPEC, promised_bytes=38)
    with pytest.raises(NoRoomError):  # what it holds is not free for another load of it
        take_memory(beside, SCRIPT)


def test_a_card_that_was_promised_twice_is_found(cards: SimulatedDevices) -> None:
    cards.take("cuda:0", 40)
    taken_dir = cards.path.with_name(f"{cards.path.name}.taken") / "cuda:0"
    (taken_dir / str(os.getppid())).write_text("25")
    assert overcommitted(cards) == {"cuda:0": 15}
