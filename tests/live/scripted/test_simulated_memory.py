"""What scripted engines take of simulated devices. No server."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from inference.protocol.load import LoadSpec
from tests.live.scripted.script import Script
from tests.live.scripted.simulated_devices import VARIABLE, SimulatedDevices
from tests.live.scripted.simulated_memory import NoRoomError, Taken, overcommitted, take_memory

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


def test_weights_and_kv_are_taken_of_the_device_that_was_chosen(cards: SimulatedDevices) -> None:
    assert take_memory(SPEC, SCRIPT) == Taken("cuda:1", 60, 30)
    assert [device.free_memory_bytes for device in cards.devices()] == [50, 10]
    assert overcommitted(cards) == {}


def test_no_more_kv_is_taken_than_was_promised(cards: SimulatedDevices) -> None:
    limited = msgspec.structs.replace(SPEC, memory_limit_bytes=70)
    assert take_memory(limited, SCRIPT).kv_bytes == 10
    beside = msgspec.structs.replace(SPEC, promised_bytes=38)
    with pytest.raises(NoRoomError):  # what it holds is not free for another load of it
        take_memory(beside, SCRIPT)


def test_what_does_not_fit_is_refused_with_both_numbers(cards: SimulatedDevices) -> None:
    asked = msgspec.structs.replace(SPEC, kv_memory_bytes=50)
    with pytest.raises(NoRoomError, match="110 bytes are needed on cuda:1, 100 are free"):
        take_memory(asked, SCRIPT)


def test_a_card_that_was_promised_twice_is_found(cards: SimulatedDevices) -> None:
    cards.take("cuda:0", 40)
    (cards.path.with_name(f"{cards.path.name}.taken") / "cuda:0" / str(os.getppid())).write_text(
        "25"
    )
    assert overcommitted(cards) == {"cuda:0": 15}


def test_without_simulated_devices_nothing_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert take_memory(SPEC, SCRIPT) == Taken("cuda:1")
