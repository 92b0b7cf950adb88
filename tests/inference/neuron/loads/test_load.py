"""The one place that decides which device a load goes to."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from inference.neuron.errors import LoadRefusedError
from inference.neuron.loads.load import choose_devices
from inference.protocol.load import LoadSpec
from tests.cases import each_case
from tests.inference.neuron.devices import card, host

SPEC = LoadSpec(job_id="j", model="m", source="path:/m.gguf")
CARDS = [card(0, 2), card(1, 20), card(2, 5)]


def chosen(devices: Any, named: list[str], **changes: int) -> list[str]:
    return choose_devices(msgspec.structs.replace(SPEC, devices=named, **changes), devices)


@each_case(
    ("devices", "named", "changes", "expected"),
    [
        (CARDS, [], {}, ["cuda:1"]),
        ([host(110), *CARDS], [], {}, ["cuda:1"]),
        ([host(110)], [], {}, ["cpu"]),
        ([host(1), *CARDS], ["cuda:0"], {}, ["cuda:0"]),
        ([host(1), *CARDS], ["cpu"], {}, ["cpu"]),
        (CARDS, ["cuda:2", "cuda:0"], {}, ["cuda:2", "cuda:0"]),
        ([host(110), *CARDS], ["cuda"], {}, ["cuda:1"]),
        ([card(1, 8), card(0, 8)], [], {}, ["cuda:0"]),
        (CARDS, [], {"min_devices": 2}, ["cuda:1", "cuda:2"]),
        (CARDS, [], {"tensor_parallel": 2}, ["cuda:1", "cuda:2"]),
        ([host(8)], [], {"tensor_parallel": 2}, ["cpu"]),
    ],
    ids=[
        "the freest card, not the first",
        "a card before a CPU with more memory",
        "a CPU where there is nothing else",
        "the card that is named",
        "the CPU that is named",
        "several that are named, in order",
        "a kind leaves the choice of the card",
        "of equal cards the first",
        "the two freest",
        "a card for each rank",
        "a host's processors for all ranks",
    ],
)
def test_devices_are_chosen(devices: Any, named: Any, changes: Any, expected: list[str]) -> None:
    assert chosen(devices, named, **changes) == expected


@each_case(
    ("devices", "named", "ranks", "words"),
    [
        (CARDS, ["cuda:7"], 1, "'cuda:7' is not here; this neuron has cuda:0, cuda:1, cuda:2"),
        (CARDS, ["cpu"], 1, "this neuron has cuda:0, cuda:1, cuda:2"),
        ([host(1)], ["cuda"], 1, "1 cuda devices are needed and this neuron has cpu"),
        (CARDS, [], 4, "4 cuda devices are needed"),
        ([], [], 1, "no device"),
    ],
)
def test_a_device_that_is_not_here_is_refused_by_name(
    devices: Any, named: list[str], ranks: int, words: str
) -> None:
    with pytest.raises(LoadRefusedError, match=words) as refused:
        chosen(devices, named, tensor_parallel=ranks)
    assert refused.value.failure.code == "no_device"  # of another neuron, or another day
