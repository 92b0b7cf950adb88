"""Which models sleep to make room: as many as may, and never more than make it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.neuron.loads.admission import Leaving, choose_sleepers
from inference.protocol.load_report import AsleepBytes
from tests.cases import each_case


def leaving(model: str, held: int, device: int | None, host: int = 0) -> Leaving:
    asleep = None if device is None else AsleepBytes(device_bytes=device, host_bytes=host)
    return Leaving(model=model, held_bytes=held, asleep=asleep)


CASES = {
    "on a card nearly all comes back": ([leaving("a", 80, 1, 70)], 75, 100, {"a"}),
    "the host has no room": ([leaving("a", 80, 1, 70)], 75, 69, set()),
    "what stays behind is wanted": ([leaving("a", 80, 1, 70)], 80, 100, set()),
    "on a processor the weights stay": ([leaving("a", 80, 60)], 20, 0, {"a"}),
    "and more than the rest is wanted": ([leaving("a", 80, 60)], 21, 0, set()),
    "it cannot sleep": ([leaving("a", 80, None)], 1, 100, set()),
    "nobody knows what is wanted": ([leaving("a", 80, 1, 70)], None, 100, set()),
    "one of two": ([leaving("a", 40, 30), leaving("b", 40, 5)], 60, 0, {"b"}),
    "the host has room for one": ([leaving("a", 40, 1, 9), leaving("b", 40, 1, 9)], 60, 10, {"a"}),
}


@each_case(("who", "lacking", "host", "expected"), CASES.values(), ids=CASES.keys())
def test_who_sleeps(who: list[Leaving], lacking: int | None, host: int, expected: set[str]) -> None:
    assert choose_sleepers(who, lacking_bytes=lacking, host_bytes=host) == expected


SIZES = st.integers(min_value=0, max_value=100)


@given(
    st.lists(st.tuples(SIZES, st.none() | SIZES, SIZES), max_size=5),
    st.none() | st.integers(min_value=-50, max_value=300),
    SIZES,
)
def test_room_is_made_and_the_host_is_not_overrun(
    sizes: list[tuple[int, int | None, int]], lacking: int | None, host: int
) -> None:
    who = [leaving(str(index), *size) for index, size in enumerate(sizes)]
    sleepers = choose_sleepers(who, lacking_bytes=lacking, host_bytes=host)
    asleep = [one for one in who if one.model in sleepers]
    assert sum(one.asleep.host_bytes for one in asleep if one.asleep is not None) <= host
    assert all(one.asleep is not None for one in asleep)
    if asleep:
        assert lacking is not None
        freed = sum(one.held_bytes - one.withheld_bytes * (one.model in sleepers) for one in who)
        assert freed >= lacking
