"""The one place that decides which device a load goes to."""

from __future__ import annotations

import msgspec
import pytest

from inference.neuron.errors import LoadRefusedError
from inference.neuron.loads.load import choose_devices
from inference.protocol.load import LoadSpec
from tests.cases import each_case
from tests.inference.neuron.devices import card, host

SPEC = LoadSpec(job_id="j", model="m", source="path:/m.gguf")
CARDS = [card(0, 2), card(1, 20), card(2, 5)]


def chosen(  # type: ignore[no-untyped-def]
    devices: list,  # type: ignore[type-arg]
    named: list[str] = [],  # noqa: B006
    **changes: int,
) -> list[str]:
    spec = msgspec.structs.replace(SPEC, devices=named, **changes)
    return choose_devices(spec, devices)


def test_the_freest_card_is_chosen_and_not_the_first() -> None:
    assert chosen(CARDS) == ["cuda:1"]


def test_a_card_comes_before_a_cpu_with_more_memory() -> None:
    assert chosen([host(110), *CARDS]) == ["cuda:1"]
    assert chosen([host(110)]) == ["cpu"]


def test_what_the_spec_names_is_taken() -> None:
    assert chosen([host(1), *CARDS], ["cuda:0"]) == ["cuda:0"]
    assert chosen([host(1), *CARDS], ["cpu"]) == ["cpu"]
    assert chosen(CARDS, ["cuda:2", "cuda:0"]) == ["cuda:2", "cuda:0"]


def test_a_kind_leaves_the_choice_of_the_card() -> None:
    assert chosen([host(110), *CARDS], ["cuda"]) == ["cuda:1"]


def test_of_equal_cards_the_first() -> None:
    assert chosen([card(1, 8), card(0, 8)]) == ["cuda:0"]


def test_a_replica_on_two_devices_gets_the_two_freest() -> None:
    assert chosen(CARDS, min_devices=2) == ["cuda:1", "cuda:2"]


def test_ranks_get_a_card_each_and_share_a_hosts_processors() -> None:
    assert chosen(CARDS, tensor_parallel=2) == ["cuda:1", "cuda:2"]
    assert chosen([host(8)], tensor_parallel=2) == ["cpu"]
    with pytest.raises(LoadRefusedError, match="4 cuda devices are needed"):
        chosen(CARDS, tensor_parallel=4)


@each_case(
    ("devices", "named", "words"),
    [
        (CARDS, ["cuda:7"], "'cuda:7' is not here; this neuron has cuda:0, cuda:1, cuda:2"),
        (CARDS, ["cpu"], "this neuron has cuda:0, cuda:1, cuda:2"),
        ([host(1)], ["cuda"], "1 cuda devices are needed and this neuron has cpu"),
        ([], [], "no device"),
    ],
)
def test_a_device_that_is_not_here_is_refused_by_name(
    devices: list,  # type: ignore[type-arg]
    named: list[str],
    words: str,
) -> None:
    with pytest.raises(LoadRefusedError, match=words) as refused:
        chosen(devices, named)
    assert refused.value.failure.code == "no_device"  # of another neuron, or another day
